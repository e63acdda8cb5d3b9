"""The paper's numbers as data, against its source where that is at hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mdcg import paper
from mdcg.methods import METHODS
from mdcg.models import HEADS

SOURCE = Path(__file__).parents[3] / "shared" / "paper.tex"
needs_source = pytest.mark.skipif(not SOURCE.exists(), reason="the paper's source is not here")
TABLES = {1: "results", 2: "tyn_results", 3: "ablation"}


def table(label: str) -> str:
    """What stands between the table's first line of numbers and its caption."""
    text = SOURCE.read_text("utf-8")
    end = text.index(f"\\label{{table:{label}}}")
    return text[text.rindex("\\begin{tabular}", 0, end) : text.rindex("\\caption", 0, end)]


def printed(label: str) -> list[tuple[str, ...]]:
    """Every cell in the order of the source: its numbers, the sign of BWT, its colour."""
    colour, result = r"(?:\\cellcolor\{(\w+)!15\}\s*)?", r"\\result(p?)" + r"\{\s*([\d.]+)\s*\}" * 4
    found = re.findall(colour + result, table(label))
    return [(a, a_std, f"{'' if sign else '-'}{b}", b_std, shade) for shade, sign, a, a_std, b, b_std in found]


def as_printed(cell: paper.Cell) -> tuple[float | str | None, ...]:
    return cell.acc, cell.acc_std, cell.bwt, cell.bwt_std, {"best": "blue", "second": "purple", "": ""}[cell.mark]


@needs_source
@pytest.mark.parametrize("number", [1, 2])
def test_every_cell(number: int) -> None:
    ours = [as_printed(cell) for cell in paper.cells() if cell.table == number]
    theirs = [(*map(float, numbers), shade) for *numbers, shade in printed(TABLES[number])]
    assert ours == theirs
    assert len(ours) == {1: 2 * 2 + 10 * 8 - 1, 2: 2 * 3 + 5 * 6}[number]  # GEM has no C100-10 with 2,000 images


@needs_source
def test_every_cell_of_the_ablation() -> None:
    body = table("ablation").split("Memory Size")[1].split("\\hline\\hline", 1)[1]
    lines = [line for line in re.split(r"\\\\", body) if line.count("&") == 10]
    numbers = [(shade, float(value)) for line in lines for shade, value in CELL.findall(line.split("&", 1)[1])]
    ours = [("blue" if cell.mark else "", cell.acc) for cell in paper.cells() if cell.table == 3]
    assert ours == numbers
    assert len(ours) == 5 * 10


CELL = re.compile(r"(?:\\cellcolor\{(\w+)!15\}\s*)?(\d+\.\d+)")


@needs_source
def test_rows_and_columns() -> None:
    """The order of the cells above says nothing of what they belong to: names and sizes in the source do."""
    for number, label in TABLES.items():
        mine = [cell for cell in paper.cells() if cell.table == number]
        text = table(label).replace("\\napproach (ours)", "MD-CG").replace("S-\\nheada", "S-CG")
        text = re.sub(r"No\s+\\nheada", "No CG", text)
        text = re.sub(r"\$\\hookrightarrow\$\s*\\nheada", "ER-ACE with CG", text)
        # Heads: "& 200 & 500 & 1K", under "C10-5", "C100-10".
        sizes = re.findall(r"\\multicolumn\{1\}\{c\}\{(\d+)(K?)\}", text)
        columns = [int(size) * (1000 if k else 1) for size, k in sizes]
        scenarios = [
            (name.lower(), int(width))
            for width, name in re.findall(r"\\multicolumn\{(\d)\}\{c\|\}\{\s*((?:C1|Ty)[\w-]+)\s*\}", text)
        ]
        assert [(cell.scenario, cell.memory) for cell in mine if cell.row == "MD-CG"] == [
            (name, size)
            for (name, width), start in zip(scenarios, range(0, 99, scenarios[0][1]), strict=False)
            for size in columns[start : start + width]
        ]
        # Rows: names in the order of the source; the first numbers after each are its cells.
        rows = list(dict.fromkeys(cell.row for cell in mine))
        places = [re.search(r"\{[^{}]*\b" + re.escape(row) + r"\b[^{}]*(?:\{[^{}]*\})?\s*\}\s*&", text) for row in rows]
        starts = [place.end() if place else -1 for place in places]
        assert starts == sorted(starts)
        assert starts[0] > 0
        for row, start in zip(rows, starts, strict=True):
            first = re.search(r"\d+\.\d+", re.sub(r"\\cellcolor\{\w+!15\}", "", text[start:]))
            assert first is not None
            assert float(first[0]) == next(cell.acc for cell in mine if cell.row == row)


@needs_source
def test_every_hyperparameter() -> None:
    """Rows of the two tables of the Appendix, a cell that spans several sizes standing for each."""
    names = {"DER": "der", "LODE": "er-lode", "LD": "ld", "\\nrega": "md"}
    symbols = {"\\alpha": "alpha", "\\beta": "beta", "\\rho": "rho", "\\lambda": "lam"}
    found: dict[tuple[str, str, str, int], float] = {}
    for label, sizes in (("hyperparameters", [200, 500, 1000, 2000]), ("hyperparameters_tim", [2000, 5000])):
        scenario = ""
        for line in re.split(r"\\\\", table(label)):
            head = re.search(r"\\multirow\{\d\}\{\*\}\{([CT][\w-]+)\}", line)
            scenario = head[1].lower().replace("tyn", "tym") if head and head[1] != "Dataset" else scenario
            method = re.search(r"&\s*(DER|LODE|LD|\\nrega)\s*&", line)
            if not method:
                continue
            cells = re.findall(r"\\multicolumn\{(\d)\}\{c\|\}\{\$(.*?)\$\}", line)
            spread = [content for width, content in cells for _ in range(int(width))]
            for size, content in zip(sizes, spread, strict=True):
                for symbol, value in re.findall(r"(\\\w+)\s*=\s*([\d.]+)", content):
                    found[scenario, names[method[1]], symbols[symbol], size] = float(value)
    ours = {
        (scenario, method, setting, memory): value
        for method in names.values()
        for setting, scenarios in paper.chosen(method).items()
        for scenario, memories in scenarios.items()
        for memory, value in memories.items()
    }
    assert ours == found
    assert len(found) == 2 * (4 * 4 + 4) + 3 * (2 * 4)


@needs_source
def test_every_grid() -> None:
    text = SOURCE.read_text("utf-8")
    text = text[text.index("\\label{table:hyperparameters_tim}") : text.index("\\section{Metrics}")]
    found = re.findall(r"\\(\w+):\s*\[(.*?)\]", text)
    ours = [(s, v) for method in ("der", "er-lode", "ld", "md") for s, v in paper.grid(method).items()]
    assert [(name.replace("lambda", "lam"), tuple(map(float, v.split(",")))) for name, v in found] == ours


def test_names_are_ours() -> None:
    for cell in paper.cells():
        assert cell.method in METHODS.names()
        assert cell.head == "" or cell.head in HEADS.names()
        assert (cell.memory > 0) == METHODS[cell.method].uses_memory
    for method in METHODS.names():
        assert set(paper.chosen(method)) <= set(METHODS[method].model_fields)
        assert set(METHODS[method].grid) <= set(METHODS[method].model_fields)


def test_looking_up() -> None:
    ace = paper.cell("c10-5", "er-ace", 500)
    assert ace is not None
    assert (ace.table, ace.acc, ace.acc_std, ace.bwt) == (1, 57.5, 1.6, -17.5)  # Table 3 has 56.3
    gates = paper.cell("c10-5", "er-ace", 500, "cascaded-gates")
    assert gates is not None
    assert (gates.table, gates.acc, gates.acc_std) == (3, 61.3, None)
    assert paper.cell("c10-5", "md-cg", 333) is None
