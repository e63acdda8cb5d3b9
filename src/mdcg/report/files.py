"""The files that other programs read: Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence

from mdcg.markup import cell
from mdcg.report.columns import columns
from mdcg.results.settings import Section, Setting

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}
COLOURS = {"best": r"\cellcolor{blue!15}", "second": r"\cellcolor{purple!15}"}
EMPTIEST = 8  # cells for each setting, at most, of a table with a column for each memory size
PREAMBLE = "% needs \\usepackage{booktabs} and \\usepackage[table]{xcolor}\n"
MEASURED = ("ACC", "BWT", "BWT_final", "forgetting", "anytime", "seconds")
SPEC = (
    "image_size", "backbone", "epochs", "batch_size", "lr", "momentum", "precision", "evaluate_every", "augmentation",
    "passes", "backbone_lr", "head_lr", "optimizer", "weight_decay", "schedule", "warmup", "clip", "label_smoothing",
    "augment", "jitter_strength", "randaugment_n", "randaugment_m", "mix_alpha",
    "weights", "normalise", "code", "fingerprint",
)  # fmt: skip
#: Columns of the CSV file, of which older versions wrote fewer.
CSV_COLUMNS = {
    "scenario", "stream", "hold_out", "setting", "method", "head", "memory", "runs", "seeds", *MEASURED,
    *(f"{name}_std" for name in MEASURED), "paper_ACC", "paper_ACC_std", "paper_BWT", "paper_BWT_std", "difference",
    "p", *SPEC, "hyperparameters", "head_settings",
}  # fmt: skip


def markdown(sections: Sequence[Section]) -> str:
    """Write a table for each section; the best of each memory size is bold, the second best in italics."""
    return "\n".join(_markdown_section(section) for section in sections)


def _markdown_section(section: Section) -> str:
    shown = columns(section)
    tested = "; p of each line by itself, not corrected for their number" if any(one.of_paper for one in shown) else ""
    lines = [
        f"## {_markdown_text(section.title)}",
        "",
        f"With {_markdown_text(section.shared)}. Percent, mean ± sample standard deviation{tested}.",
        "",
        "| " + " | ".join(column.title for column in shown) + " |",
        "|---|" + "---:|" * (len(shown) - 1),
    ]
    for place, setting in enumerate(section.settings):
        cells = [_markdown_text(column.text(setting)) for column in shown]
        emphasis = {"best": "**", "second": "*"}.get(section.marks.get(place, ""), "")
        cells = [
            f"{emphasis}{cell}{emphasis}" if column.title == "ACC" else cell
            for column, cell in zip(shown, cells, strict=True)
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _markdown_text(text: str) -> str:
    """Escape a text for Markdown.

    >>> print(_markdown_text("a|b_c <i>"))
    a\\|b\\_c \\<i\\>
    """
    return re.sub(r"([\\|*_`<>\[\]#&~$])", r"\\\1", " ".join(text.split()))


def latex(sections: Sequence[Section]) -> str:
    """Write a table for each section, laid out as the paper's: a line for each method, ACC and BWT of each memory size.

    BWT is that at the end, which is what the paper's tables print.
    """
    return PREAMBLE + "".join(f"\n{_latex_section(section)}" for section in sections)


def _latex_section(section: Section) -> str:
    memories = sorted({setting.spec.memory for setting in section.settings} - {0})
    names = {setting.name for setting in section.settings if setting.spec.memory}
    sparse = len(names) * len(memories) > EMPTIEST * len(section.settings)
    lines = _latex_by_setting(section) if sparse else _latex_by_memory(section, memories)
    counts = sorted({len(setting.runs) for setting in section.settings})
    runs = (
        f"{counts[0]} run{'s' if counts[-1] > 1 else ''}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} runs"
    )
    caption = f"{section.title}, with {section.shared}. Percent, mean and sample standard deviation of {runs}."
    lines = [r"\begin{table}", r"\centering", *lines, rf"\caption{{{latex_text(caption)}}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _latex_by_memory(section: Section, memories: Sequence[int]) -> list[str]:
    """The table with a pair of columns for each memory size."""
    without = [setting for setting in section.settings if not setting.spec.memory]
    rows: dict[str, dict[int, str]] = {}
    for place, setting in enumerate(section.settings):
        if setting.spec.memory:
            rows.setdefault(setting.name, {})[setting.spec.memory] = _marked(section, place)
    wide = 2 * max(len(memories), 1)
    lines = [rf"\begin{{tabular}}{{l{'r' * wide}}}", r"\toprule"]
    if memories:
        spans = "".join(rf" & \multicolumn{{2}}{{c}}{{$M = {memory}$}}" for memory in memories)
        lines.append(spans.strip() + r" \\")
    lines += ["Method" + " & ACC & BWT-final" * (wide // 2) + r" \\", r"\midrule"]
    # Without a memory there is one pair of numbers, whatever the column: it stands in the first.
    lines += [f"{latex_text(one.name)} & {_pair(one)}{' &' * (wide - 2)} " + r"\\" for one in without]
    if without and rows:
        lines.append(r"\midrule")
    for name, cells in rows.items():
        numbers = " & ".join(cells.get(memory, "-- & --") for memory in memories)
        lines.append(f"{latex_text(name)} & {numbers} " + r"\\")
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _latex_by_setting(section: Section) -> list[str]:
    """The table with a line for each setting: where hardly any two have their name or their memory size in common, one
    with a column for each size would be empty, and grow with the square of their number."""
    rows = [
        f"{latex_text(setting.name)} & {setting.spec.memory or '--'} & {_marked(section, place)} " + r"\\"
        for place, setting in enumerate(section.settings)
    ]
    head = [r"\begin{tabular}{lrrr}", r"\toprule", r"Method & $M$ & ACC & BWT-final \\", r"\midrule"]
    return [*head, *rows, r"\bottomrule", r"\end{tabular}"]


def _marked(section: Section, place: int) -> str:
    return f"{COLOURS.get(section.marks.get(place, ''), '')}{_pair(section.settings[place])}"


def _pair(setting: Setting) -> str:
    return " & ".join(_latex_number(setting.stats[name].mean, setting.stats[name].std) for name in ("ACC", "BWT_final"))


def _latex_number(mean: float, std: float) -> str:
    if math.isnan(mean):
        return "--"
    return f"${mean:.1f}$" if math.isnan(std) else rf"${mean:.1f} \pm {std:.1f}$"


def latex_text(text: str) -> str:
    r"""Escape a text for LaTeX.

    >>> print(latex_text("50% of my_set"))
    50\% of my\_set
    """
    return "".join(LATEX.get(char, char if char.isprintable() else "?") for char in " ".join(text.split()))


def csv_table(sections: Sequence[Section]) -> str:
    """Write one line per setting: plain numbers, empty where there is none."""
    text = io.StringIO()
    rows = [_csv_row(setting) for section in sections for setting in section.settings]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _csv_row(setting: Setting) -> dict[str, object]:
    spec, cell = setting.spec, setting.paper
    row: dict[str, object] = {
        "scenario": spec.scenario,
        "stream": spec.stream.in_words(most=10**6),
        "hold_out": spec.hold_out,
        "setting": setting.name,
        "method": spec.method,
        "head": spec.head,
        "memory": spec.memory,
        "runs": len(setting.runs),
        "seeds": " ".join(str(run.spec.seed) for run in setting.runs),
    }
    for name in MEASURED:
        row |= {name: _plain(setting.stats[name].mean), f"{name}_std": _plain(setting.stats[name].std)}
    for name in ("acc", "acc_std", "bwt", "bwt_std"):
        row[f"paper_{name.replace('acc', 'ACC').replace('bwt', 'BWT')}"] = getattr(cell, name, None)
    row |= {"difference": _plain(setting.difference), "p": setting.p}
    known = spec.settings()
    row |= {field: known[field] for field in SPEC}
    return row | {
        "hyperparameters": json.dumps(spec.hyperparameters, sort_keys=True),
        "head_settings": json.dumps(spec.head_settings, sort_keys=True),
    }


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)
