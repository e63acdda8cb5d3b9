"""The files of a report as they are told from all others, see `outputs`."""

from __future__ import annotations

import re
from importlib.resources import files

from mdcg.outputs import Kind, csv_of, marked, of_lines
from mdcg.report.files import CSV_COLUMNS, PREAMBLE

TABLE_LINE = re.compile(
    r"## .*||With .* Percent, mean ± sample standard deviation(; p of each line by itself, .*)?\.|\|.*\|"
)
LATEX_LINE = re.compile(
    r"% needs .*||\\(begin|end)\{table\}|\\centering|\\(begin\{tabular\}\{[lr]*\}|end\{tabular\})|"
    r"\\(top|mid|bottom)rule|.* \\\\|\\caption\{.* Percent, mean and sample standard deviation of .* runs?\.\}"
)
TOLD_BY = {"scenario", "setting", "method", "memory", "runs", "seeds", "ACC", "ACC_std", "hyperparameters"}

FRAME = (files("mdcg.report") / "page" / "page.html").read_bytes()
PAGE = Kind.told_by("a page of mdcg", marked(FRAME.partition(b"{{")[0], FRAME.rpartition(b"%}\n")[2]))
REPORT = {
    "table.md": Kind.told_by("a table of mdcg", of_lines("## ", "|\n", lambda line: bool(TABLE_LINE.fullmatch(line)))),
    "table.tex": Kind.told_by(
        "a table of mdcg", of_lines(PREAMBLE, "\\end{table}\n", lambda line: bool(LATEX_LINE.fullmatch(line)))
    ),
    "table.csv": Kind.told_by("a table of mdcg", csv_of(lambda columns: TOLD_BY <= {*columns} <= CSV_COLUMNS)),
    "index.html": PAGE,
}
