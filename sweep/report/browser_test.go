package report

import (
	"context"
	"fmt"
	"math"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"raftrig/sweep/ladder"
	"raftrig/sweep/zone"
)

// watch notes in the page what goes wrong there.
const watch = `window.faults = [];
addEventListener("error", e => faults.push("error: " + (e.message || e.target.outerHTML)), true);
addEventListener("unhandledrejection", e => faults.push("rejection: " + e.reason));
addEventListener("securitypolicyviolation", e => faults.push("policy: " + e.violatedDirective + " " + e.blockedURI));
for (const name of ["error", "warn"]) console[name] = (...args) => faults.push(name + ": " + args.join(" "));`

// browse opens a page from a file in headless Chromium.
func browse(t *testing.T, html string) context.Context {
	t.Helper()
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Skip("no chromium on this host")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "report.html")
	if err := os.WriteFile(file, []byte(html), 0o644); err != nil {
		t.Fatal(err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.UserDataDir(filepath.Join(dir, "profile")),
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		// Where the temporary directory is: what Chromium puts there goes too.
		chromedp.Env("TMPDIR="+dir))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("the browser did not end: %v", err)
		}
	})
	watching := chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, cdpage.AddScriptToEvaluateOnNewDocument, cdpage.AddScriptToEvaluateOnNewDocumentParams{Source: watch})
		return err
	})
	address := url.URL{Scheme: "file", Path: file}
	if err := chromedp.Do(ctx, watching, chromedp.Navigate(address.String())); err != nil {
		t.Fatal(err)
	}
	return ctx
}

func evaluate[T any](t *testing.T, ctx context.Context, script string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script))
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return v
}

func do(t *testing.T, ctx context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

func media(medium, scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Media: medium, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return err
	})
}

// shown is what the page shows of one ladder at one position of the slider.
type shown struct {
	Bound   string   `json:"bound"`
	Edge    string   `json:"edge"`    // the chart's label
	Bar     string   `json:"bar"`     // the overview's label
	Summary []string `json:"summary"` // the table's cells
	Hidden  bool     `json:"hidden"`  // the zone is
	Right   float64  `json:"right"`   // its right end
	Line    float64  `json:"line"`    // where its edge is drawn
	BarEnd  float64  `json:"bar_end"`
	Centres []float64
	Hollow  []bool `json:"hollow"`
	State   string `json:"state"`
	Bad     string `json:"bad"` // ratios marked
}

// sweepSlider moves the slider through all positions and tells what each shows.
const sweepSlider = `(() => {
  const box = e => e.getBoundingClientRect();
  const slider = document.getElementById("bound");
  const all = [];
  for (let i = 0; i <= Number(slider.max); i++) {
    slider.value = i;
    slider.dispatchEvent(new Event("input"));
    document.querySelectorAll("section.ladder").forEach((section, l) => {
      const svg = section.querySelector("svg.wide"), band = svg.querySelector("g.band");
      const bar = document.querySelector("#zones svg.wide g.band[data-l='" + l + "']");
      const circles = [...svg.querySelectorAll("circle.in-s0[data-k]")];
      const rungs = [...section.querySelectorAll("tr.rung")];
      const texts = {"in the zone": "z", "noise": "n", "fails": "f", "passes, beyond the zone": "p"};
      all.push({
        bound: document.getElementById("bound-text").textContent,
        edge: band.querySelector("text").textContent, bar: bar.querySelector("text").textContent,
        summary: [...document.querySelectorAll("tr.summary[data-l='" + l + "'] td")].map(e => e.textContent),
        hidden: getComputedStyle(band.querySelector("rect")).display === "none",
        right: box(band.querySelector("rect")).right, line: box(band.querySelector("line")).x, bar_end: Number(bar.querySelector("line").getAttribute("x1")),
        Centres: circles.map(c => box(c).x + box(c).width / 2), hollow: circles.map(c => c.classList.contains("out")),
        state: rungs.map(r => texts[r.querySelector(".judgement").textContent]).join(""),
        bad: rungs.map(r => r.querySelector(".ratio").classList.contains("bad") ? "1" : "0").join(""),
      });
    });
  }
  return all;
})()`

func TestBrowserSlider(t *testing.T) {
	// Without a zone for a low bound, and never out of it for a high one.
	whole := filepath.Join(t.TempDir(), "whole.csv")
	if err := os.WriteFile(whole, []byte("product,mode,offered,achieved,p50_us,p99_us,dropped,measure_s,burst\n"+
		"whole,open,20000,20000,100,205,0,30,10\nwhole,open,30000,30000,100,205,0,30,10\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	files := append(slices.Clone(published), whole)
	ctx := browse(t, html(t, build(t, files)))
	if faults := evaluate[[]string](t, ctx, "faults"); len(faults) > 0 {
		t.Fatalf("the page has faults: %q", faults)
	}
	ladders, err := ladder.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	all := evaluate[[]shown](t, ctx, sweepSlider)
	if len(all) != 46*len(ladders) {
		t.Fatalf("%d positions of %d ladders seen", len(all), len(ladders))
	}
	seen := map[string]string{}
	for i, s := range all {
		tenths, l := firstTenths+i/len(ladders), i%len(ladders)
		limits := zone.DefaultLimits()
		limits.Ratio = float64(tenths) / 10
		z, err := zone.Of(ladders[l], limits)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("%s at %.1f", z.Product, limits.Ratio)
		want := "no zone"
		if z.Edge != nil {
			want = ladder.FormatRate(*z.Edge)
		}
		if z.LowerBound {
			want = "≥ " + want
		}
		chart := "edge " + want
		if z.Edge == nil {
			chart = want
		}
		if s.Bound != fmt.Sprintf("%.1f", limits.Ratio) || s.Edge != chart || s.Bar != z.Product+" "+want || s.Summary[0] != want {
			t.Errorf("%s: edge %s, but the page says %s, %s, %s, %s", name, want, s.Bound, s.Edge, s.Bar, s.Summary[0])
		}
		if z.FirstFailing != nil && !strings.HasSuffix(s.Summary[len(s.Summary)-1], z.FirstFailing.Why()) {
			t.Errorf("%s: fails for %s, the page says %s", name, z.FirstFailing.Why(), s.Summary[len(s.Summary)-1])
		}
		if s.Hidden != (z.Edge == nil) {
			t.Errorf("%s: zone hidden %v", name, s.Hidden)
		}
		for k, p := range z.Points {
			if z.Edge != nil && p.Rate == *z.Edge && (math.Abs(s.Right-s.Centres[k]) > 0.5 || math.Abs(s.Line-s.Centres[k]) > 1.5) {
				t.Errorf("%s: the zone ends at %.1f, its line is at %.1f, the edge's mark at %.1f", name, s.Right, s.Line, s.Centres[k])
			}
			inZone := strings.ContainsRune("zn", rune(s.State[k]))
			if s.Hollow[k] == p.InZone || inZone != p.InZone || (s.State[k] == 'n') != (p.Noise && p.InZone) {
				t.Errorf("%s: %d in the zone %v, noise %v; mark hollow %v, table %c", name, p.Rate, p.InZone, p.Noise, s.Hollow[k], s.State[k])
			}
			if beyond := p.Ratio > limits.Ratio; (s.Bad[k] == '1') != beyond {
				t.Errorf("%s: %d has ratio %.2f, marked %c", name, p.Rate, p.Ratio, s.Bad[k])
			}
		}
		seen[s.Bound] += " " + s.Summary[0]
	}
	// As published.
	for bound, want := range map[string]string{
		"2.0": " 400k 140k 30k no zone", "2.5": " 400k 150k 60k ≥ 30k", "3.0": " 400k 150k 85k ≥ 30k", "3.5": " 400k 160k 85k ≥ 30k",
	} {
		if seen[bound] != want {
			t.Errorf("at %s the page shows%s, want%s", bound, seen[bound], want)
		}
	}

	// The button leads back, and the row of the bound in force is marked.
	do(t, ctx, chromedp.Click(chromedp.ID("reset")))
	if got := evaluate[string](t, ctx, `document.getElementById("bound-text").textContent + " " + document.querySelector("tr.sensitivity.now").dataset.bound`); got != "3.0 3.0" {
		t.Errorf("after a reset the page shows %s", got)
	}
	if faults := evaluate[[]string](t, ctx, "faults"); len(faults) > 0 {
		t.Errorf("the page has faults: %q", faults)
	}
	if loaded := evaluate[[]string](t, ctx, `performance.getEntriesByType("resource").map(e => e.name)`); len(loaded) > 0 {
		t.Errorf("the page loads %q", loaded)
	}
}

// The watch of faults and loads itself works.
func TestBrowserSeesFaults(t *testing.T) {
	broken := strings.Replace(html(t, build(t, published)), "</main>", `</main><img src="http://127.0.0.1:9/x.png"><script>alert(1)</script>`, 1)
	ctx := browse(t, broken)
	faults := strings.Join(evaluate[[]string](t, ctx, "faults"), "\n")
	for _, want := range []string{"policy: img-src", "policy: script-src"} {
		if !strings.Contains(faults, want) {
			t.Errorf("faults %q have no %s", faults, want)
		}
	}
}

func TestBrowserMedia(t *testing.T) {
	dir := t.TempDir()
	file := writeSweep(t, dir, "hashiraft-with-a-name-that-is-rather-long", []int64{2000, 5000, 8000, 12000}, 3, 11000)
	ctx := browse(t, html(t, build(t, append([]string{file}, published...))))
	display := func(selector string) string {
		return evaluate[string](t, ctx, fmt.Sprintf("getComputedStyle(document.querySelector(%q)).display", selector))
	}
	background := func() string { return evaluate[string](t, ctx, "getComputedStyle(document.body).backgroundColor") }

	for _, width := range []int64{320, 360, 768, 1280} {
		do(t, ctx, chromedp.EmulateViewport(width, 800, chromedp.EmulateMobile))
		if got := evaluate[int64](t, ctx, "document.documentElement.scrollWidth"); got > width {
			t.Errorf("%d pixels: the page is %d wide", width, got)
		}
		if phone := width <= 640; (display("svg.narrow") == "block") != phone || (display("svg.wide") == "none") != phone {
			t.Errorf("%d pixels: the charts are wide %s, narrow %s", width, display("svg.wide"), display("svg.narrow"))
		}
		// Letters of a chart as they come out, in pixels.
		size := evaluate[float64](t, ctx, `(() => { const s = [...document.querySelectorAll("svg.chart")].find(s => getComputedStyle(s).display !== "none");
			return 12 * s.getBoundingClientRect().width / s.viewBox.baseVal.width; })()`)
		if size < 9 {
			t.Errorf("%d pixels: the charts' letters are %.1f pixels", width, size)
		}
		outside := evaluate[[]string](t, ctx, `[...document.querySelectorAll("svg.chart")].filter(s => getComputedStyle(s).display !== "none").flatMap(s => {
			const b = s.getBoundingClientRect();
			return [...s.querySelectorAll("text")].filter(e => { const r = e.getBoundingClientRect(); return r.left < b.left - 1 || r.right > b.right + 1 || r.top < b.top - 1 || r.bottom > b.bottom + 1; }).map(e => e.textContent);
		})`)
		if len(outside) > 0 {
			t.Errorf("%d pixels: cut off: %q", width, outside)
		}
	}

	do(t, ctx, media("screen", "dark"))
	if got := background(); got != "rgb(21, 24, 28)" {
		t.Errorf("dark: background %s", got)
	}
	if got := evaluate[string](t, ctx, `getComputedStyle(document.querySelector("svg.wide .in-s0.solid")).stroke`); got != "rgb(86, 180, 233)" {
		t.Errorf("dark: first series %s", got)
	}
	do(t, ctx, media("screen", "light"))
	if got := background(); got != "rgb(255, 255, 255)" {
		t.Errorf("light: background %s", got)
	}

	// On paper: light, without the slider, wide, nothing folded.
	do(t, ctx, chromedp.EmulateViewport(600, 800), media("print", "dark"))
	if got := background(); got != "rgb(255, 255, 255)" {
		t.Errorf("print: background %s", got)
	}
	if display("#control") != "none" || display("svg.wide") == "none" || display("svg.narrow") != "none" {
		t.Errorf("print: slider %s, charts wide %s, narrow %s", display("#control"), display("svg.wide"), display("svg.narrow"))
	}
	if n := evaluate[int](t, ctx, `dispatchEvent(new Event("beforeprint")), document.querySelectorAll("details:not([open])").length`); n != 0 {
		t.Errorf("print: %d tables are folded", n)
	}
	// A4 with the browser's margins.
	do(t, ctx, chromedp.EmulateViewport(718, 1000))
	if got := evaluate[int64](t, ctx, "document.documentElement.scrollWidth"); got > 718 {
		t.Errorf("print: the page is %d wide, a sheet 718", got)
	}
	if n := evaluate[int](t, ctx, `dispatchEvent(new Event("afterprint")), document.querySelectorAll("details[open]").length`); n != 0 {
		t.Errorf("after print: %d tables are open", n)
	}
	if faults := evaluate[[]string](t, ctx, "faults"); len(faults) > 0 {
		t.Errorf("the page has faults: %q", faults)
	}
}
