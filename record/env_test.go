package record

import (
	"runtime"
	"runtime/debug"
	"testing"
	"testing/fstest"
)

const x86CPUInfo = `processor	: 0
vendor_id	: AuthenticAMD
model name	: AMD EPYC 7R13 Processor
flags		: fpu vme sse2 hypervisor lahf_lm
bugs		: spectre_v1

processor	: 1
vendor_id	: AuthenticAMD
model name	: AMD EPYC 7R13 Processor
flags		: fpu vme sse2 hypervisor lahf_lm
bugs		: spectre_v1
`

const armCPUInfo = `processor	: 0
BogoMIPS	: 243.75
Features	: fp asimd evtstrm aes
CPU implementer	: 0x41
CPU architecture: 8
CPU part	: 0xd0c
`

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

func TestReadEnvironment(t *testing.T) {
	got := readEnvironment(fstest.MapFS{
		"proc/cpuinfo":                  file(x86CPUInfo),
		"proc/cmdline":                  file("BOOT_IMAGE=/vmlinuz root=UUID=1 quiet isolcpus=1\n"),
		"proc/meminfo":                  file("MemTotal:        7956788 kB\nMemFree:          204800 kB\n"),
		"proc/loadavg":                  file("0.25 0.19 0.15 1/88 7637\n"),
		"proc/sys/kernel/hostname":      file("bench-1\n"),
		"proc/sys/kernel/osrelease":     file("6.1.0-13-amd64\n"),
		"etc/os-release":                file("NAME=\"Debian GNU/Linux\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
		"sys/class/dmi/id/sys_vendor":   file("Amazon EC2\n"),
		"sys/class/dmi/id/product_name": file("c6a.large\n"),
		"sys/devices/system/clocksource/clocksource0/current_clocksource": file("kvm-clock\n"),
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor":            file("powersave\n"),
		"sys/devices/system/cpu/cpu1/cpufreq/scaling_governor":            file("performance\n"),
		"sys/devices/system/cpu/cpu2/cpufreq/scaling_governor":            file("performance\n"),
	})
	want := Environment{
		Hostname: "bench-1", OS: "Debian GNU/Linux 12 (bookworm)", Kernel: "6.1.0-13-amd64",
		KernelCmdline: "BOOT_IMAGE=/vmlinuz root=UUID=1 quiet isolcpus=1", Virtualization: "Amazon EC2 c6a.large",
		CPU: "AMD EPYC 7R13 Processor", Cores: 2, ClockSource: "kvm-clock", Governor: "performance,powersave",
		MemoryBytes: 7956788 * 1024, LoadAverage: 0.25,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestReadEnvironmentOfNothing(t *testing.T) {
	got := readEnvironment(fstest.MapFS{})
	want := Environment{
		Hostname: unknown, OS: unknown, Kernel: unknown, KernelCmdline: unknown, Virtualization: unknown,
		CPU: unknown, ClockSource: unknown, Governor: unknown,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestGovernorNone(t *testing.T) {
	e := readEnvironment(fstest.MapFS{"sys/devices/system/cpu/online": file("0-1\n")})
	if e.Governor != "none" {
		t.Error(e.Governor)
	}
}

func TestCPUModel(t *testing.T) {
	for text, want := range map[string]string{
		x86CPUInfo: "AMD EPYC 7R13 Processor",
		armCPUInfo: "implementer 0x41 part 0xd0c",
		"garbage":  unknown,
		"":         unknown,
	} {
		if got := cpuModel(text); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestVirtualization(t *testing.T) {
	const bare = "flags\t: fpu vme\n"
	for _, c := range []struct{ cpuinfo, hypervisor, vendor, product, want string }{
		{x86CPUInfo, unknown, "QEMU", "Standard PC", "QEMU Standard PC"},
		{x86CPUInfo, unknown, unknown, unknown, "hypervisor"},
		{x86CPUInfo, "xen", "Xen", "HVM domU", "Xen HVM domU xen"},
		{x86CPUInfo, unknown, "KVM", "KVM", "KVM"},
		{bare, unknown, "Dell Inc.", "PowerEdge R640", "none"},
		{bare, "xen", unknown, unknown, "xen"},
		{armCPUInfo, unknown, "Amazon EC2", "c7g.large", "Amazon EC2 c7g.large"},
		{armCPUInfo, unknown, unknown, unknown, unknown},
	} {
		if got := virtualization(c.cpuinfo, c.hypervisor, c.vendor, c.product); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestNumbersFromGarbage(t *testing.T) {
	for _, text := range []string{"", "MemTotal:", "MemTotal: many kB", "NaN 1 2", "-1", "1e99"} {
		if n := memoryBytes(text); n != 0 {
			t.Errorf("%q: %d bytes", text, n)
		}
		if l := loadAverage(text); l != 0 {
			t.Errorf("%q: load %v", text, l)
		}
	}
}

func TestCommitOf(t *testing.T) {
	settings := func(kv ...string) *debug.BuildInfo {
		info := new(debug.BuildInfo)
		for i := 0; i < len(kv); i += 2 {
			info.Settings = append(info.Settings, debug.BuildSetting{Key: kv[i], Value: kv[i+1]})
		}
		return info
	}
	const revision = "0123456789abcdef0123456789abcdef01234567"
	for _, c := range []struct {
		info *debug.BuildInfo
		want string
	}{
		{nil, unknown},
		{settings(), unknown},
		{settings("vcs.modified", "true"), unknown},
		{settings("vcs.revision", revision, "vcs.modified", "false"), "0123456789ab"},
		{settings("vcs.modified", "true", "vcs.revision", revision), "0123456789ab-dirty"},
	} {
		if got := commitOf(c.info); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestHostEnvironment(t *testing.T) {
	e := HostEnvironment()
	if e.Kernel == unknown || e.Cores < 1 || e.CoresAllowed < 1 || e.MemoryBytes < 1<<20 || e.GOMAXPROCS < 1 || e.Commit == "" {
		t.Errorf("%+v", e)
	}
	if goos, goarch := platform(e.GoVersion); goos != runtime.GOOS || goarch != runtime.GOARCH {
		t.Errorf("go version %q", e.GoVersion)
	}
	defer func(was string) { Commit = was }(Commit)
	Commit = "abc"
	if got := HostEnvironment().Commit; got != "abc" {
		t.Errorf("commit %q", got)
	}
}
