"""A report as one self-contained HTML page: tables that need no script, charts that need no network.

`page.html` is the frame, `page.css` the looks, `page.js` all that moves, `charts.js` what plotly.js draws. Whatever
comes from data is escaped in the tables, and for the charts goes in as JSON.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from itertools import accumulate
from string import Template

from plotly.offline import get_plotlyjs

from mdcg.report.columns import Column, columns
from mdcg.report.page import payload
from mdcg.report.page.figures import figures
from mdcg.results.settings import Section, Setting
from mdcg.results.statistics import ALPHA

CHOSEN = 12  # settings, at most, whose charts are shown at first
ASCENDING = ("method", "memory", "significant?", "forgetting", "s/run")  # sorted first from small to large
FALLING = "descending"


def page(sections: Sequence[Section], title: str) -> str:
    """The whole page."""
    bodies, data, first = [], [], 0
    for number, section in enumerate(sections):
        bodies.append(_section(section, number, first))
        data.append(payload.script(payload.of_section(section, first), f"section-{number}"))
        for place, setting in enumerate(section.settings):
            data.append(payload.script(payload.of_setting(setting), f"setting-{first + place}"))
        first += len(section.settings)
    return Template(_file("page.html")).substitute(
        title=escape(title),
        summary=escape(_summary(sections)),
        alpha=f"{ALPHA:g}",
        css=_file("page.css"),
        plotly=_inside_script(get_plotlyjs()),
        charts=_inside_script(_file("charts.js")),
        js=_inside_script(_file("page.js")),
        sections="\n".join(bodies),
        data="\n".join(data),
    )


def _file(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")


def _inside_script(code: str) -> str:
    """Code whose strings cannot end its script element, or make a browser believe that a comment begins."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _summary(sections: Sequence[Section]) -> str:
    settings = [setting for section in sections for setting in section.settings]
    runs = [run for setting in settings for run in setting.runs]
    scenarios = {setting.spec.scenario for setting in settings}
    days = sorted({run.finished[:10] for run in runs if run.finished})
    text = f"{_count(len(runs), 'run')} of {_count(len(settings), 'setting')} in {_count(len(scenarios), 'scenario')}"
    if days:
        text += f", finished {days[0]}" if days[0] == days[-1] else f", finished {days[0]} to {days[-1]}"
    return text + "."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _section(section: Section, number: int, first: int) -> str:
    shown = columns(section)
    heads = "".join(_head(column) for column in shown)
    chosen = _chosen_at_first(section)
    rows = "\n".join(_row(section, place, shown, chosen, first) for place in range(len(section.settings)))
    title = escape(section.title)
    return f"""<section data-section="{number}" aria-labelledby="title-{number}">
<h2 id="title-{number}">{title}</h2>
<p class="faint">With {escape(section.shared)}.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Results: {title}"><table class="results">
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody></table></div>
<div class="panels"></div>
<div class="comparison"></div>
{figures(section)}
</section>"""


def _chosen_at_first(section: Section) -> set[str]:
    """The best names with all their memory sizes, so that each is a whole line, as long as charts stay readable."""
    sizes = Counter(setting.name for setting in section.settings)  # in the order of the best
    return {name for name, so_far in zip(sizes, accumulate(sizes.values()), strict=True) if so_far <= CHOSEN}


def _head(column: Column) -> str:
    order = f' aria-sort="{FALLING}"' if column.title == "ACC" else ""
    first = "ascending" if column.title in ASCENDING else FALLING
    button = f'<button type="button" class="sort" data-first="{first}">{escape(column.title)}</button>'
    every = '<input type="checkbox" class="every" aria-label="compare all">' if column.title == "method" else ""
    return f'<th scope="col"{order}>{every}{button}</th>'


def _row(section: Section, place: int, shown: Sequence[Column], chosen: set[str], first: int) -> str:
    setting, number = section.settings[place], first + place
    cells = "".join(_cell(column, setting, section.marks.get(place, "")) for column in shown[1:])
    checked = " checked" if setting.name in chosen else ""
    label = escape(setting.label)
    return (
        f'<tr data-setting="{number}"><th scope="row" data-value="{escape(setting.name)}"><span class="name">'
        f'<input type="checkbox" class="choose" aria-label="compare {label}"{checked}>'
        f'<button type="button" class="open" aria-expanded="false" aria-label="details of {label}">'
        f"{escape(setting.name)}</button></span></th>{cells}</tr>"
    )


def _cell(column: Column, setting: Setting, mark: str) -> str:
    value = column.value(setting)
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    data = "" if missing else f' data-value="{escape(str(value))}"'
    looks = f' class="{mark}"' if mark and column.title == "ACC" else ""
    return f"<td{looks}{data}>{escape(column.text(setting))}</td>"
