"""A report as one self-contained HTML page: no script, no network, light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

import numpy as np

from mdcg.api import Result
from mdcg.metrics import Matrix
from mdcg.report.tables import COLUMNS, best_first, settings_of, shade, spread

STYLE = """
:root { color-scheme: light dark; --line: #8884; --faint: #888; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
caption { text-align: left; color: var(--faint); padding-bottom: .3rem; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line);
         font-variant-numeric: tabular-nums; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
tbody tr:first-child { font-weight: 600; }
.matrix td, .matrix th { border: 0; text-align: center; font-weight: 400; padding: .25rem .5rem; }
.matrices { display: flex; flex-wrap: wrap; gap: 0 2.5rem; }
.wide { overflow-x: auto; }
summary { cursor: pointer; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; font-size: .9rem; }
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
<div class="wide">{_comparison(ranked)}</div>
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
        rows.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    heads = "".join(f"<th>{label}</th>" for label in COLUMNS.values())
    return (
        f"<table><caption>Percent, {over}; best first.</caption>"
        f"<thead><tr><th>method</th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _matrix(R: Matrix, name: str) -> str:
    heads = "".join(f"<th>{task + 1}</th>" for task in range(len(R)))
    rows = "".join(f"<tr><th>{i + 1}</th>{''.join(_cell(entry) for entry in row)}</tr>" for i, row in enumerate(R))
    return (
        f'<table class="matrix"><caption>{escape(name)}</caption><thead><tr><th></th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _cell(value: float) -> str:
    if math.isnan(value):
        return "<td></td>"
    red, green, blue = shade(value)
    ink = "#fff" if value > 50 else "#000"
    return f'<td style="background:rgb({red},{green},{blue});color:{ink}">{value:.1f}</td>'


def _runs(name: str, result: Result) -> str:
    items = []
    for record in result.records:
        rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in settings_of(record))
        acc = record.metrics["ACC"]
        items.append(
            f"<details><summary>{escape(name)}, seed {record.spec.seed}: ACC {acc:.1f}</summary>"
            f'<div class="wide">{_matrix(np.asarray(record.R), "")}</div><dl>{rows}</dl></details>'
        )
    return "".join(items)
