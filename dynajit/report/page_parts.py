"""Style and script of the report's page (`html.py`). Colours keep their contrast in light and dark."""

STYLE = """
:root{color-scheme:light dark;--fg:#1c2024;--bg:#fff;--soft:#f3f4f6;--line:#d5d9de;--graph:#cdeccf;--inlined:#e3f3e4;
--broken:#ffc9c2;--eager:#ececec;--accent:#2457c5}
@media (prefers-color-scheme:dark){:root{--fg:#e6e8ea;--bg:#16181b;--soft:#22262b;--line:#3a4047;--graph:#1f4d2a;
--inlined:#1c3423;--broken:#6b2620;--eager:#30343a;--accent:#8ab0ff}}
*{box-sizing:border-box}
body{margin:0;font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg)}
header{position:sticky;top:0;z-index:1;display:flex;flex-wrap:wrap;gap:8px 18px;align-items:center;padding:8px 20px;
background:var(--bg);border-bottom:1px solid var(--line)}
h1{font-size:18px;margin:0}h2{margin:30px 0 8px;font-size:19px}h3{font-size:15px;margin:16px 0 6px;word-break:break-all}
h3 small{font-weight:normal;opacity:.7;margin-left:8px}
nav{display:flex;flex-wrap:wrap;gap:14px}a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
#search{margin-left:auto;min-width:240px;padding:5px 8px;border:1px solid var(--line);border-radius:5px;
background:var(--bg);color:inherit;font:inherit}
main{max-width:1200px;margin:0 auto;padding:10px 20px 60px}
section{scroll-margin-top:60px}
.totals{display:flex;flex-wrap:wrap;gap:12px;margin-top:14px}
.totals div{background:var(--soft);border-radius:7px;padding:10px 18px}.totals b{display:block;font-size:22px}
.error{background:var(--broken);padding:8px 12px;border-radius:5px}
pre,code{font:13px/1.45 ui-monospace,Menlo,Consolas,monospace}
pre{background:var(--soft);padding:10px 12px;border-radius:5px;overflow:auto;max-height:600px}
table{border-collapse:collapse;width:100%}
.source{border:1px solid var(--line)}
.source th{font-weight:normal;font-size:12px;opacity:.7;text-align:right;padding:2px 8px}
.source td{padding:0 8px;vertical-align:top}
.source td:nth-child(-n+2){width:1%;text-align:right;opacity:.65;font-size:12px}
.source code{white-space:pre-wrap;overflow-wrap:anywhere}
.graph,.key.graph{background:var(--graph)}.inlined,.key.inlined{background:var(--inlined)}
.broken,.key.broken{background:var(--broken)}.eager,.key.eager{background:var(--eager)}
.gap td{opacity:.5}.note{display:block;font-size:12px;margin:0 0 3px 2em}
.key{padding:2px 10px;border-radius:4px;margin-right:10px;font-size:13px}
.plain th,.plain td{text-align:left;border-bottom:1px solid var(--line);padding:4px 10px 4px 0;vertical-align:top;
word-break:break-word}
article{border:1px solid var(--line);border-radius:7px;padding:2px 16px 6px;margin:12px 0}
summary{cursor:pointer;padding:4px 0}
.drawing{overflow:auto;max-height:520px;border:1px solid var(--line);border-radius:5px;padding:8px}
svg path{fill:none;stroke:var(--line);stroke-width:1.5}svg rect{fill:var(--graph);stroke:var(--line)}
svg .input rect{fill:var(--soft)}svg text{font:11px ui-monospace,monospace;fill:var(--fg)}svg .shape{opacity:.7}
.bar{display:flex;align-items:center;gap:10px;font-size:13px}.bar span{width:110px;text-align:right}
.bar i{background:var(--accent);height:12px;border-radius:3px;min-width:2px}
.hidden{display:none}mark{background:#ffe066;color:#000}
"""

SCRIPT = """
const box = document.getElementById("search"), found = document.getElementById("found");
box.addEventListener("input", () => {
  const wanted = box.value.trim().toLowerCase();
  let hits = 0;
  for (const item of document.querySelectorAll(".searchable")) {
    const hit = !wanted || item.textContent.toLowerCase().includes(wanted);
    item.classList.toggle("hidden", !hit);
    hits += hit && wanted !== "";
  }
  for (const row of document.querySelectorAll(".source tbody tr, .source > tr")) {
    const hit = wanted && row.textContent.toLowerCase().includes(wanted);
    row.style.outline = hit ? "2px solid var(--accent)" : "";
    hits += hit ? 1 : 0;
  }
  found.textContent = wanted ? hits + " found" : "";
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== box) { event.preventDefault(); box.focus(); }
});
"""
