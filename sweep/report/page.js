"use strict";
(() => {
  const steps = JSON.parse(document.getElementById("steps").textContent);
  const states = {z: "in the zone", n: "noise", f: "fails", p: "passes, beyond the zone"};
  const slider = document.getElementById("bound");
  const each = (selector, f) => document.querySelectorAll(selector).forEach(f);

  const show = () => {
    const step = steps[slider.value];
    document.getElementById("bound-text").textContent = step.bound;
    slider.setAttribute("aria-valuetext", step.bound + " times p50");
    each(".bound", e => { e.textContent = step.bound; });

    each("g.band", g => {
      const to = step.ladders[g.dataset.l];
      const left = Number(g.dataset.left), right = Number(g.dataset.right);
      const x = to.edge < 0 ? left : Number(g.dataset.xs.split(" ")[to.edge]);
      const [rect, line, label] = g.children;
      g.classList.toggle("none", to.edge < 0);
      rect.setAttribute("width", x - left);
      line.setAttribute("x1", x);
      line.setAttribute("x2", x);
      const before = x > (left + right) / 2;
      label.setAttribute("x", before ? x - 6 : x + 6);
      label.setAttribute("text-anchor", before ? "end" : "start");
      const name = g.dataset.name || (to.edge < 0 ? "" : "edge");
      label.textContent = (name + " " + to.label).trim();
    });
    each(".mark[data-l]", e => {
      e.classList.toggle("out", Number(e.dataset.k) > step.ladders[e.dataset.l].edge);
    });
    each("tr.rung", tr => {
      const to = step.ladders[tr.dataset.l], k = Number(tr.dataset.k);
      tr.dataset.state = to.state[k];
      tr.querySelector(".judgement").textContent = states[to.state[k]];
      tr.querySelector(".ratio").classList.toggle("bad", to.ratio[k] === "1");
    });
    each("tr.summary", tr => {
      tr.querySelectorAll("td").forEach((td, i) => { td.textContent = step.ladders[tr.dataset.l].summary[i]; });
    });
    each("tr.sensitivity", tr => { tr.classList.toggle("now", tr.dataset.bound === step.bound); });
  };

  slider.addEventListener("input", show);
  document.getElementById("reset").addEventListener("click", () => { slider.value = slider.defaultValue; show(); });
  // Paper has no way to open what is folded.
  const folded = document.querySelectorAll("details");
  addEventListener("beforeprint", () => folded.forEach(d => { d.dataset.was = d.open; d.open = true; }));
  addEventListener("afterprint", () => folded.forEach(d => { d.open = d.dataset.was === "true"; }));
  document.getElementById("control").hidden = false;
  show();
})();
