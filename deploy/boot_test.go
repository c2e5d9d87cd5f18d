package deploy

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// userData is the user data as hosts.tf puts it together.
func userData(t *testing.T) string {
	t.Helper()
	script, err := os.ReadFile("user_data.sh")
	boot, err2 := os.ReadFile("boot.sh")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return strings.Replace(string(script), "@boot.sh@", strings.TrimSpace(string(boot)), 1)
}

// shell runs lines after a script has been sourced, with programs of a folder
// before others.
func shell(t *testing.T, script, bin, lines string, environ ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("bash", "-c", `. "$1"`+"\n"+lines, "bash", script)
	cmd.Env = append(os.Environ(), environ...)
	if bin != "" {
		cmd.Env = append(cmd.Env, "PATH="+bin+":"+os.Getenv("PATH"))
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func put(t *testing.T, name, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
}

func TestUserData(t *testing.T) {
	text := userData(t)
	if len(text) > 16<<10 {
		t.Errorf("%d bytes: EC2 takes 16 KiB", len(text))
	}
	dir := t.TempDir()
	script := filepath.Join(dir, "user-data")
	put(t, script, text)

	t.Run("install", func(t *testing.T) {
		root := filepath.Join(dir, "root")
		if out, err := shell(t, script, "", "install_boot "+root+"; install_boot "+root); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		boot, err := os.ReadFile("boot.sh")
		if err != nil {
			t.Fatal(err)
		}
		installed := filepath.Join(root, "usr/local/sbin/raftrig-boot")
		got, err := os.ReadFile(installed)
		if err != nil || string(got) != string(boot) {
			t.Errorf("%v: not boot.sh:\n%s", err, got)
		}
		if info, err := os.Stat(installed); err != nil || info.Mode().Perm() != 0o755 {
			t.Error(info.Mode(), err)
		}
		unit, err := os.ReadFile(filepath.Join(root, "etc/systemd/system/raftrig-boot.service"))
		if err != nil || !strings.Contains(string(unit), "\nExecStart=/usr/local/sbin/raftrig-boot\n") {
			t.Errorf("%v: %s", err, unit)
		}
	})
	t.Run("clock", func(t *testing.T) {
		conf := filepath.Join(dir, "chrony.conf")
		put(t, conf, "# pool of old\npool ntp.ubuntu.com iburst\nserver 192.0.2.1\ndriftfile /var/lib/chrony/drift\n")
		if out, err := shell(t, script, "", "clock "+conf+"; clock "+conf); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		got, err := os.ReadFile(conf)
		if want := "# pool of old\ndriftfile /var/lib/chrony/drift\nserver 169.254.169.123 prefer iburst minpoll 4 maxpoll 4\n"; err != nil || string(got) != want {
			t.Errorf("%v: %s", err, got)
		}
	})
	t.Run("packages", func(t *testing.T) {
		bin := filepath.Join(dir, "bin")
		put(t, filepath.Join(bin, "sleep"), "#!/bin/sh\n")
		// Each call fails as often as there are letters in a file.
		put(t, filepath.Join(bin, "apt-get"), `#!/bin/sh
echo "$1" >>"$CALLS.log"
[ -s "$CALLS" ] || exit 0
printf %s "$(tail -c +2 "$CALLS")" >"$CALLS"
exit 100
`)
		calls := filepath.Join(dir, "calls")
		for fails, ok := range map[string]bool{"": true, "xxx": true, "xxxxxx": false} {
			put(t, calls, fails)
			out, err := shell(t, script, bin, "packages", "CALLS="+calls)
			if (err == nil) != ok {
				t.Errorf("%d failures: %v: %s", len(fails), err, out)
			}
		}
	})
}

// TestBoot has mount_data work with disks and programs that only say what they
// are asked for.
func TestBoot(t *testing.T) {
	for _, c := range []struct {
		name  string
		disks int
		state string // what is there: formatted, mounted, array (the kernel's), known (to mdadm)
		want  string
	}{
		{"no local disk", 0, "", ""},
		{"first boot", 1, "", "mkfs.ext4 -q -E nodiscard -m 0 /disk0\nmount -o noatime /disk0 /data\n"},
		{"next boot", 1, "formatted", "mount -o noatime /disk0 /data\n"},
		{"again", 1, "formatted mounted", ""},
		{"first boot with two", 2, "", "mdadm --assemble --quiet /dev/md/raftrig /disk0 /disk1\n" +
			"mdadm --create /dev/md/raftrig --run --quiet --level=0 --raid-devices=2 /disk0 /disk1\n" +
			"mkfs.ext4 -q -E nodiscard -m 0 /dev/md/raftrig\nmount -o noatime /dev/md/raftrig /data\n"},
		{"next boot with two", 2, "known formatted", "mdadm --assemble --quiet /dev/md/raftrig /disk0 /disk1\nmount -o noatime /dev/md/raftrig /data\n"},
		{"the kernel was first", 2, "array formatted", "mount -o noatime /dev/md127 /data\n"},
		{"again with two", 2, "array formatted mounted", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			bin, byID, data, calls := filepath.Join(dir, "bin"), filepath.Join(dir, "by-id"), filepath.Join(dir, "data"), filepath.Join(dir, "calls")
			is := func(s string) string {
				return fmt.Sprint(map[bool]int{true: 0, false: 1}[strings.Contains(c.state, s)])
			}
			say := "#!/bin/sh\necho \"${0##*/} $*\" >>" + calls + "\n"
			put(t, filepath.Join(bin, "mkfs.ext4"), say)
			put(t, filepath.Join(bin, "mount"), say)
			put(t, filepath.Join(bin, "mdadm"), say+"[ $1 = --create ] || exit "+is("known")+"\n")
			put(t, filepath.Join(bin, "blkid"), "#!/bin/sh\nexit "+is("formatted")+"\n")
			put(t, filepath.Join(bin, "mountpoint"), "#!/bin/sh\nexit "+is("mounted")+"\n")
			put(t, filepath.Join(bin, "lsblk"), "#!/bin/sh\necho $3 disk\n[ "+is("array")+" = 1 ] || echo /dev/md127 raid0\n")
			put(t, calls, "")
			put(t, filepath.Join(byID, "nvme-Amazon_Elastic_Block_Store_vol1"), "")
			for i := range c.disks {
				disk := filepath.Join(dir, fmt.Sprint("disk", i))
				put(t, disk, "")
				for _, suffix := range []string{"", "-ns-1", "_1"} {
					if err := os.Symlink(disk, fmt.Sprintf("%s/nvme-Amazon_EC2_NVMe_Instance_Storage_AWS%d%s", byID, i, suffix)); err != nil {
						t.Fatal(err)
					}
				}
			}
			out, err := shell(t, "boot.sh", bin, "mount_data", "RAFTRIG_BY_ID="+byID, "RAFTRIG_DATA="+data)
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			got, err := os.ReadFile(calls)
			if s := strings.ReplaceAll(string(got), dir, ""); err != nil || s != c.want {
				t.Errorf("%v: asked for\n%swant\n%s", err, s, c.want)
			}
			info, err := os.Stat(data)
			if err != nil || info.Mode()&os.ModeSticky == 0 || info.Mode().Perm() != 0o777 {
				t.Errorf("%v, %v", info, err)
			}
		})
	}
	t.Run("a step fails", func(t *testing.T) {
		dir := t.TempDir()
		bin := filepath.Join(dir, "bin")
		put(t, filepath.Join(bin, "mountpoint"), "#!/bin/sh\nexit 1\n")
		put(t, filepath.Join(bin, "lsblk"), "#!/bin/sh\n")
		put(t, filepath.Join(bin, "mdadm"), "#!/bin/sh\nexit 1\n")
		for i := range 2 {
			put(t, fmt.Sprintf("%s/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_AWS%d", dir, i), "")
		}
		if out, err := shell(t, "boot.sh", bin, "mount_data", "RAFTRIG_BY_ID="+dir+"/by-id", "RAFTRIG_DATA="+dir+"/data"); err == nil {
			t.Errorf("an array that cannot be made is no error: %s", out)
		}
	})
}

// loopDisks gives disks of 64 MB that are files.
func loopDisks(t *testing.T, n int) (byID string, disks []string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("no loop devices without root")
	}
	for _, tool := range []string{"losetup", "mkfs.ext4", "blkid", "unshare", "mountpoint"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not on the PATH", tool)
		}
	}
	dir := t.TempDir()
	byID = filepath.Join(dir, "by-id")
	for i := range n {
		file := filepath.Join(dir, fmt.Sprint("disk", i))
		put(t, file, "")
		if err := os.Truncate(file, 64<<20); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
		if err != nil {
			t.Skipf("no loop device: losetup: %s", lastLine(string(out)))
		}
		disk := strings.TrimSpace(string(out))
		t.Cleanup(func() {
			if out, err := exec.Command("losetup", "--detach", disk).CombinedOutput(); err != nil {
				t.Errorf("losetup: %v: %s", err, out)
			}
		})
		put(t, byID+"/other", "")
		if err := os.Symlink(disk, fmt.Sprintf("%s/nvme-Amazon_EC2_NVMe_Instance_Storage_AWS%d", byID, i)); err != nil {
			t.Fatal(err)
		}
		disks = append(disks, disk)
	}
	return byID, disks
}

// boots are the boots of a host: two of the same, a reboot, and one after a stop
// that left empty disks behind. $DISKS are its disks; unplug takes them away.
const boots = `
mount_data
mount_data
mountpoint -q "$DATA"
[ "$(stat -c %a "$DATA")" = 1777 ]
echo kept >"$DATA/file"
umount "$DATA"
unplug
mount_data
[ "$(cat "$DATA/file")" = kept ]
umount "$DATA"
unplug
for disk in $DISKS; do dd if=/dev/zero of="$disk" bs=1M count=64 conv=fsync status=none; done
mount_data
mountpoint -q "$DATA"
[ ! -e "$DATA/file" ]
umount "$DATA"
unplug
`

// TestBootOnDisks has mount_data make real file systems.
func TestBootOnDisks(t *testing.T) {
	try := func(t *testing.T, n int, unplug string) {
		byID, disks := loopDisks(t, n)
		data := filepath.Join(t.TempDir(), "data")
		// In a mount namespace of its own nothing stays mounted.
		cmd := exec.Command("unshare", "--mount", "bash", "-xc", ". ./boot.sh\nunplug() { "+unplug+"; }\n"+boots)
		cmd.Env = append(os.Environ(), "RAFTRIG_BY_ID="+byID, "RAFTRIG_DATA="+data, "DISKS="+strings.Join(disks, " "))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	t.Run("one", func(t *testing.T) { try(t, 1, ":") })
	t.Run("two", func(t *testing.T) {
		if _, err := exec.LookPath("mdadm"); err != nil {
			t.Skip("mdadm is not on the PATH")
		}
		if _, err := os.Stat("/proc/mdstat"); err != nil {
			t.Skip("no RAID in this kernel (md)")
		}
		try(t, 2, "mdadm --stop --quiet /dev/md/raftrig")
	})
}
