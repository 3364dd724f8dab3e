"""The style sheet of ``graph_page``, light and dark, and its few lines of script."""

STYLE = """
:root { --paper: #fff; --ink: #1c2330; --soft: #667085; --line: #d9dee7; --tint: #f5f7fa; --edge: #8a94a6;
  --warn: #c4320a; --mark: #175cd3; --fill-s: 70%; --fill-l: 94%; --rim-s: 45%; --rim-l: 62%; --life-l: 82%; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #12161d; --ink: #e4e8ef; --soft: #94a0b4; --line: #2e3644; --tint: #1a202a; --edge: #6b778c;
    --warn: #ff8f6b; --mark: #84adff; --fill-s: 30%; --fill-l: 17%; --rim-s: 35%; --rim-l: 45%; --life-l: 32%; }
}
[style] { --rim: hsl(var(--hue) var(--rim-s) var(--rim-l)); }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 14px/1.5 system-ui, sans-serif; }
header, main { max-width: 1320px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 28px; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 20px; margin: 36px 0 12px; }
h3 { font-size: 15px; margin: 28px 0 8px; }
header p, .legend, summary, th, .cards span { color: var(--soft); } header p { margin: 2px 0 10px; }
a { color: var(--mark); } nav a { margin-right: 16px; } svg a { text-decoration: none; }
.cards { display: flex; flex-wrap: wrap; gap: 10px; margin: 0 0 14px; }
.cards div { background: var(--tint); border: 1px solid var(--line); border-radius: 8px; padding: 8px 14px; }
.cards b { display: block; font-size: 17px; font-variant-numeric: tabular-nums; } .cards span { font-size: 12px; }
.scroll { overflow: auto; max-height: 88vh; border: 1px solid var(--line); border-radius: 10px; }
.scroll svg { display: block; margin: 0 auto; }
.legend { font-size: 12px; }
.legend span { border: 1.5px solid; border-radius: 4px; padding: 1px 7px; margin-right: 8px; }
.legend .fused { border-color: hsl(210 45% 55%); background: hsl(210 60% 55% / .18); }
.legend .op { border-style: dashed; border-color: var(--warn); } .legend .single { border-color: var(--line); }
.fit { float: right; font: inherit; font-size: 12px; color: var(--mark); background: var(--tint); cursor: pointer;
  border: 1px solid var(--line); border-radius: 6px; } svg.fitted { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; vertical-align: top; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); }
th { font-weight: 500; } td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td:first-child { white-space: nowrap; }
td { overflow-wrap: anywhere; } pre { overflow: auto; max-height: 60vh; background: var(--tint); padding: 10px;
  border-radius: 6px; font: 12px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: normal; }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 7px;
  background: var(--rim); }
.share { display: block; height: 3px; background: var(--mark); margin: 2px 0 0 auto; border-radius: 2px; }
td details { display: inline-block; vertical-align: top; margin: 0 14px 0 0; max-width: 100%; }
td details[open] { display: block; }
td b { display: block; }
details { margin: 4px 0; } summary { cursor: pointer; font-size: 13px; } section > details { margin-top: 24px; }
tr:has(:target) { background: var(--tint); }
svg text { font: 11px ui-monospace, "DejaVu Sans Mono", monospace; fill: var(--ink); }
.frame { stroke-width: 1.5; fill: var(--tint); stroke: var(--line); }
.step.fused .frame { fill: hsl(var(--hue) var(--fill-s) var(--fill-l)); stroke: var(--rim); }
.step.single .frame { stroke: var(--rim); }
.step.op .frame { stroke: var(--warn); stroke-dasharray: 5 3; }
.step:hover .frame, .life:hover rect { stroke: var(--mark); stroke-width: 2; }
svg text.head { font-weight: 700; } svg text.op { font-weight: 600; }
svg text.cost, svg text.row, svg text.name, svg text.label, svg text.axis { fill: var(--soft); }
svg text.name { font-size: 10px; }
.node rect { fill: var(--paper); stroke: var(--line); } .inner { stroke: var(--edge); fill: none; stroke-width: 1.4; }
.pill rect { fill: var(--tint); stroke: var(--edge); }
.edge { fill: none; stroke: var(--edge); stroke-width: 1.4; } .tip { fill: var(--edge); }
.edge:hover, .edge.near { stroke: var(--mark); stroke-width: 2.4; } .edge.far { opacity: .25; }
.plot { fill: var(--tint); } .life rect { fill: hsl(var(--hue) 55% var(--life-l)); stroke: var(--rim); }
.life text { pointer-events: none; } .alive { fill: none; stroke: var(--mark); stroke-width: 1.6; }
.bound { stroke: var(--warn); stroke-dasharray: 6 4; }
"""

SCRIPT = """
document.querySelectorAll("svg.graph").forEach(svg => {
  const fit = svg.closest("section").querySelector(".fit");
  fit.hidden = svg.clientWidth <= svg.parentElement.clientWidth;
  fit.addEventListener("click", () => {
    fit.textContent = svg.classList.toggle("fitted") ? "full size" : "fit to width";
  });
  const edges = [...svg.querySelectorAll(".edge")];
  svg.querySelectorAll(".step").forEach(step => {
    const key = step.dataset.key;
    step.addEventListener("mouseenter", () => edges.forEach(edge => {
      const near = edge.dataset.from === key || edge.dataset.to === key;
      edge.classList.toggle("near", near); edge.classList.toggle("far", !near);
    }));
    step.addEventListener("mouseleave", () => edges.forEach(edge => edge.classList.remove("near", "far")));
  });
});
"""
