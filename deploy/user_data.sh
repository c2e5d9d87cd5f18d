#!/bin/bash
# User data of every host of the fleet. It runs once, at the first boot, and
# leaves boot.sh behind with a unit that runs it at each. Sourced, it only
# defines its functions.
set -euo pipefail

# install_boot writes the script of each boot and its unit below a folder.
install_boot() {
  local root=$1
  install -d "$root/usr/local/sbin" "$root/etc/systemd/system"
  # Terraform puts boot.sh here.
  cat >"$root/usr/local/sbin/raftrig-boot" <<'RAFTRIG_BOOT'
@boot.sh@
RAFTRIG_BOOT
  chmod 0755 "$root/usr/local/sbin/raftrig-boot"
  cat >"$root/etc/systemd/system/raftrig-boot.service" <<'UNIT'
[Unit]
Description=raftrig: local disks and network of a fleet's host
After=local-fs.target network-online.target
Wants=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/raftrig-boot

[Install]
WantedBy=multi-user.target
UNIT
}

# quiet masks what would wake up in the middle of a run.
quiet() {
  systemctl mask --now apt-daily.timer apt-daily-upgrade.timer apt-daily.service apt-daily-upgrade.service \
    unattended-upgrades.service man-db.timer fwupd-refresh.timer || true
}

# packages installs what the fleet's commands need: ping for node-rtt, rsync for
# push, mdadm for several disks.
packages() {
  local try
  export DEBIAN_FRONTEND=noninteractive
  for try in 1 2 3 4 5; do
    if apt-get update -q &&
      apt-get install -y -q -o DPkg::Lock::Timeout=120 chrony ethtool iputils-ping mdadm rsync; then
      return 0
    fi
    echo "raftrig: packages: attempt $try failed" >&2
    sleep 10 # a mirror that is not there yet
  done
  return 1
}

# clock has chrony, by its settings in a file, take the time from the instance's
# own source, which no router is between.
clock() {
  local conf=$1
  sed -i -E '/^(pool|server) /d' "$conf"
  echo 'server 169.254.169.123 prefer iburst minpoll 4 maxpoll 4' >>"$conf"
}

if ! (return 0 2>/dev/null); then # not sourced
  quiet
  packages
  clock /etc/chrony/chrony.conf
  systemctl restart chrony
  install_boot ''
  systemctl daemon-reload
  systemctl enable --now raftrig-boot.service
fi
