"""A report as one self-contained HTML page: no script, no network, light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

import numpy as np

from mdcg.api import Result
from mdcg.metrics import Matrix
from mdcg.report.tables import COLUMNS, best_first, settings_of, spread

STYLE = """
:root { color-scheme: light dark; --line: #8884; --faint: #888; --none: #ebf2fa; --full: #084081;
        --on-none: #000; --on-full: #fff; }
@media (prefers-color-scheme: dark) { :root { --none: #1a2230; --full: #9ecbff; --on-none: #fff; --on-full: #000; } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
caption { text-align: left; color: var(--faint); padding-bottom: .3rem; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line);
         font-variant-numeric: tabular-nums; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
tbody tr:first-child { font-weight: 600; }
.matrix td { background: color-mix(in srgb, var(--full) var(--share), var(--none)); color: var(--on-none); }
.matrix td.most { color: var(--on-full); }
.matrix td.unseen { background: none; }
.matrix td, .matrix th { border: 0; text-align: center; font-weight: 400; padding: .25rem .5rem; }
.matrices { display: flex; flex-wrap: wrap; gap: 0 2.5rem; }
.wide { overflow-x: auto; max-width: 100%; }
.faint { color: var(--faint); margin-bottom: 0; }
summary { cursor: pointer; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; font-size: .9rem; }
@media (max-width: 40rem) { body { font-size: 14px; } th, td { padding: .25rem .4rem; }
                            .matrix td, .matrix th { padding: .2rem .3rem; } }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
"""


def page(results: Mapping[str, Result], title: str) -> str:
    """The comparison table, each method's mean accuracy matrix, and every run's settings."""
    ranked = best_first(results)
    matrices = "".join(_matrix(result.R.mean(0), name) for name, result in ranked)
    details = "".join(_runs(name, result) for name, result in ranked)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{escape(title)}</title>
<style>{STYLE}</style>
<h1>{escape(title)}</h1>
{_comparison(ranked)}
<p>ACC: accuracy over all tasks at the end. BWT: change of past tasks' accuracy since they were learned, mean over all
later tasks; BWT-final: the same at the end only. Forgetting: best earlier accuracy less the final one.</p>
<h2>Accuracy of each task as later ones are learned</h2>
<p>Row i: after learning task i. Column j: percent correct on the images of task j, mean over seeds.</p>
<div class="matrices">{matrices}</div>
<h2>Runs</h2>
{details}
</html>
"""


def _comparison(ranked: list[tuple[str, Result]]) -> str:
    count = max(len(result.records) for _, result in ranked)
    over = f"mean ± sample standard deviation over {count} seeds" if count > 1 else "one seed"
    rows = []
    for name, result in ranked:
        cells = "".join(f"<td>{spread(result.mean[m], result.std[m])}</td>" for m in COLUMNS)
        seconds = np.mean([record.seconds for record in result.records])
        rows.append(f"<tr><td>{escape(name)}</td>{cells}<td>{seconds:.1f}</td></tr>")
    heads = "".join(f"<th>{label}</th>" for label in COLUMNS.values())
    return (
        f'<p class="faint">Percent, {over}; best first.</p><div class="wide"><table>'
        f"<thead><tr><th>method</th>{heads}<th>s/run</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _matrix(R: Matrix, name: str) -> str:
    heads = "".join(f"<th>{task + 1}</th>" for task in range(len(R)))
    rows = "".join(f"<tr><th>{i + 1}</th>{''.join(_cell(entry) for entry in row)}</tr>" for i, row in enumerate(R))
    return (
        f'<div class="wide"><table class="matrix"><caption>{escape(name)}</caption>'
        f"<thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cell(value: float) -> str:
    if math.isnan(value):
        return '<td class="unseen"></td>'
    return f'<td style="--share:{value:.0f}%"{" class=most" if value > 50 else ""}>{value:.1f}</td>'


def _runs(name: str, result: Result) -> str:
    items = []
    for record in result.records:
        rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in settings_of(record))
        acc = record.metrics["ACC"]
        items.append(
            f"<details><summary>{escape(name)}, seed {record.spec.seed}: ACC {acc:.1f}</summary>"
            f"{_matrix(record.R, '')}<dl>{rows}</dl></details>"
        )
    return "".join(items)
