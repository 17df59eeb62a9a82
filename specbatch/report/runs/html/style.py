"""How pages look: light and dark, from a telephone to a wide screen."""

from __future__ import annotations

SERIES = 6
"""Colours that there are; the seventh series has the first one's again, and another dash."""

STYLE = """\
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#57606a;--line:#d0d7de;--card:#f6f8fa;
--bad:#a40e26;--s0:#0060a8;--s1:#c24a00;--s2:#00785a;--s3:#a03c78;--s4:#7a6100;--s5:#4b5563}
@media (prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--dim:#9aa4af;--line:#30363d;
--card:#161b22;--bad:#ff8f8f;--s0:#6cb6f0;--s1:#f79f5b;--s2:#3ecf9f;--s3:#e79ac5;--s4:#e8d44d;--s5:#b1bac4}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:16px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:.2em 0}h2{font-size:1.15rem;margin:2em 0 .4em;padding-top:.6em;
border-top:1px solid var(--line)}
p{max-width:75ch;margin:.4em 0}.dim{color:var(--dim)}
.notes{border-left:4px solid var(--bad);background:var(--card);padding:.5em 1em;margin:1em 0}
.notes ul{margin:.3em 0;padding-left:1.2em}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,210px),1fr));gap:12px;margin:1em 0}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px}
.card dt{color:var(--dim)}.card dd{margin:0}.card .big{font-size:1.5rem;font-weight:600;line-height:1.2}
dl.cards{padding:0}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,350px),1fr));
gap:16px;margin:1em 0}
figure{margin:0;min-width:0}figcaption{color:var(--dim);font-size:.87rem;max-width:60ch}
svg{display:block;width:100%;max-width:480px;height:auto}
svg text{font:12px system-ui,sans-serif;fill:var(--fg)}svg .t{font-weight:600;font-size:13px}
svg .dim{fill:var(--dim)}svg .grid{stroke:var(--line)}svg .axis{stroke:var(--dim)}
svg .curve{fill:none;stroke-width:2}svg .bound{stroke:var(--bg);stroke-width:1}
svg .slo{stroke-width:1.5;stroke-dasharray:2 3}svg .mark{stroke:var(--fg);stroke-width:2}
svg .outline{fill:none;stroke:var(--dim)}
.scroll{overflow-x:auto;margin:.6em 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding:.3em 0}
th,td{padding:3px 10px 3px 0;text-align:right;border-bottom:1px solid var(--line);vertical-align:top;
overflow-wrap:normal}
thead th{color:var(--dim);font-weight:500}th:first-child,td.words,th.words{text-align:left}
td.words{min-width:12em}tbody th{font-weight:500;text-align:left}
code{font:13px ui-monospace,monospace}
"""

COLOURS = "".join(
    f"svg .f{number}{{fill:var(--s{number})}}svg .c{number}{{stroke:var(--s{number})}}"
    for number in range(SERIES)
)
"""Classes of fills and strokes by series."""
