#!/bin/bash
# What a host of the fleet needs at each boot: its local disks at /data, and its
# network tuned. user_data.sh carries it there. Sourced, it only defines its
# functions; RAFTRIG_BY_ID and RAFTRIG_DATA are for the tests.
set -euo pipefail
shopt -s inherit_errexit

# Each instance-store disk has one link of this kind, and others with a
# namespace behind.
BY_ID=${RAFTRIG_BY_ID:-/dev/disk/by-id}
DATA=${RAFTRIG_DATA:-/data}

# instance_store prints the device of each instance-store disk, once.
instance_store() {
  local link
  for link in "$BY_ID"/nvme-Amazon_EC2_NVMe_Instance_Storage_*; do
    if [ -e "$link" ]; then readlink -f "$link"; fi
  done | sort -u
}

# raid prints the array over the disks. The kernel may have put it together
# under a name of its own before this runs; after a stop the disks are empty.
raid() {
  local array=/dev/md/raftrig found
  found=$(lsblk -lnpo NAME,TYPE "$1" | awk '$2 == "raid0" { print $1; exit }')
  if [ -n "$found" ]; then
    echo "$found"
    return
  fi
  if ! mdadm --assemble --quiet "$array" "$@" >&2; then
    mdadm --create "$array" --run --quiet --level=0 --raid-devices=$# "$@" >&2
  fi
  echo "$array"
}

# mount_data mounts one file system over all instance-store disks, and makes it
# where there is none. A host without such disks has a plain folder.
mount_data() {
  local disks disk
  mkdir -p "$DATA"
  if ! mountpoint -q "$DATA"; then
    mapfile -t disks < <(instance_store)
    case ${#disks[@]} in
      0) disk= ;;
      1) disk=${disks[0]} ;;
      *) disk=$(raid "${disks[@]}") ;;
    esac
    if [ -n "$disk" ]; then
      blkid "$disk" >/dev/null || mkfs.ext4 -q -E nodiscard -m 0 "$disk"
      mount -o noatime "$disk" "$DATA"
    fi
  fi
  chmod 1777 "$DATA"
}

# tune_network lets sockets have large buffers and poll, and has the interface
# interrupt at once. What a kernel or a driver does not offer stays as it is, and
# says so in the journal.
tune_network() {
  local dev
  sysctl -q -w net.core.rmem_max=16777216 net.core.wmem_max=16777216 \
    net.core.busy_read=50 net.core.busy_poll=50 || true
  dev=$(ip -o route show default | awk '{ for (i = 1; i < NF; i++) if ($i == "dev") { print $(i + 1); exit } }')
  if [ -n "$dev" ]; then
    ethtool -C "$dev" adaptive-rx off rx-usecs 0 tx-usecs 0 || true
    ip link set dev "$dev" mtu 9001 || true
  fi
}

if ! (return 0 2>/dev/null); then # not sourced
  udevadm settle || true # the links of the disks
  mount_data
  tune_network
fi
