package record

import (
	"bufio"
	"io/fs"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// Commit is the commit that raftrig was built from. A build sets it by
// -ldflags "-X raftrig/record.Commit=..."; without, the commit that the Go
// command stamped into the program counts.
var Commit string

const unknown = "unknown"

// HostEnvironment describes this host. It never fails: what cannot be read is
// "unknown", or 0 where it is a number. LoadAverage is of the last minute, so
// call it before the run makes load of its own.
func HostEnvironment() Environment {
	e := readEnvironment(os.DirFS("/"))
	// The affinity at the program's start: by now lanes may be pinned.
	e.CoresAllowed = runtime.NumCPU()
	e.GOMAXPROCS = runtime.GOMAXPROCS(0)
	e.GoVersion = runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
	e.Commit = Commit
	if e.Commit == "" {
		info, _ := debug.ReadBuildInfo()
		e.Commit = commitOf(info)
	}
	return e
}

// readEnvironment reads what the kernel and the distribution say under root.
func readEnvironment(root fs.FS) Environment {
	text := func(name string) string {
		data, err := fs.ReadFile(root, name)
		if s := strings.TrimSpace(strings.Trim(string(data), "\x00")); err == nil && s != "" {
			return s
		}
		return unknown
	}
	cpuinfo := text("proc/cpuinfo")
	e := Environment{
		Hostname:       text("proc/sys/kernel/hostname"),
		OS:             osName(text("etc/os-release")),
		Kernel:         text("proc/sys/kernel/osrelease"),
		KernelCmdline:  text("proc/cmdline"),
		CPU:            cpuModel(cpuinfo),
		Cores:          cpuCount(cpuinfo),
		ClockSource:    text("sys/devices/system/clocksource/clocksource0/current_clocksource"),
		MemoryBytes:    memoryBytes(text("proc/meminfo")),
		LoadAverage:    loadAverage(text("proc/loadavg")),
		Virtualization: virtualization(cpuinfo, text("sys/hypervisor/type"), text("sys/class/dmi/id/sys_vendor"), text("sys/class/dmi/id/product_name")),
	}
	e.Governor = governor(root, text)
	return e
}

// fields yields the "key<separator>value" lines of a file under /proc or /etc.
func fields(text, separator string) func(yield func(key, value string) bool) {
	return func(yield func(key, value string) bool) {
		lines := bufio.NewScanner(strings.NewReader(text))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			key, value, found := strings.Cut(lines.Text(), separator)
			if found && !yield(strings.TrimSpace(key), strings.TrimSpace(value)) {
				return
			}
		}
	}
}

func field(text, separator, key string) string {
	for k, v := range fields(text, separator) {
		if k == key && v != "" {
			return v
		}
	}
	return unknown
}

func osName(osRelease string) string {
	return strings.Trim(field(osRelease, "=", "PRETTY_NAME"), `"'`)
}

// cpuModel is the model's name or, on arm64, which has none, the numbers of
// its implementer and part.
func cpuModel(cpuinfo string) string {
	if model := field(cpuinfo, ":", "model name"); model != unknown {
		return model
	}
	implementer, part := field(cpuinfo, ":", "CPU implementer"), field(cpuinfo, ":", "CPU part")
	if implementer == unknown || part == unknown {
		return unknown
	}
	return "implementer " + implementer + " part " + part
}

func cpuCount(cpuinfo string) int {
	n := 0
	for key := range fields(cpuinfo, ":") {
		if key == "processor" {
			n++
		}
	}
	return n
}

// governor is the frequency governor of all cores, "none" where the kernel does
// not scale frequencies, as in most virtual machines.
func governor(root fs.FS, text func(string) string) string {
	const cpus = "sys/devices/system/cpu"
	if _, err := fs.Stat(root, cpus); err != nil {
		return unknown
	}
	names, _ := fs.Glob(root, path.Join(cpus, "cpu[0-9]*/cpufreq/scaling_governor"))
	var all []string
	for _, name := range names {
		all = append(all, text(name))
	}
	if len(all) == 0 {
		return "none"
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ",")
}

func memoryBytes(meminfo string) int64 {
	kib, _ := strconv.ParseInt(strings.TrimSuffix(field(meminfo, ":", "MemTotal"), " kB"), 10, 64)
	return kib << 10
}

func loadAverage(loadavg string) float64 {
	first, _, _ := strings.Cut(loadavg, " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil || !(load >= 0 && load < 1e9) {
		return 0
	}
	return load
}

// virtualization names the virtual machine, "none" on a bare x86 host. Other
// architectures do not tell by a flag; there it is what the firmware calls the
// machine.
func virtualization(cpuinfo, hypervisor, vendor, product string) string {
	var names []string
	for _, s := range []string{vendor, product, hypervisor} {
		if s != unknown && !slices.Contains(names, s) {
			names = append(names, s)
		}
	}
	machine := strings.Join(names, " ")
	flags := field(cpuinfo, ":", "flags")
	switch {
	case flags != unknown && !slices.Contains(strings.Fields(flags), "hypervisor") && hypervisor == unknown:
		return "none"
	case machine != "":
		return machine
	case flags != unknown:
		return "hypervisor"
	}
	return unknown
}

func commitOf(info *debug.BuildInfo) string {
	commit, dirty := unknown, ""
	if info == nil {
		return commit
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && s.Value != "":
			commit = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if commit == unknown {
		return commit
	}
	return commit + dirty
}
