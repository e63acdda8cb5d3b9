"""The report: tables, a page, and files that others can read."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console

from mdcg.data import load
from mdcg.errors import MdcgError
from mdcg.execute.context import Context
from mdcg.execute.sweep import Sweep
from mdcg.recipes.document import Document
from mdcg.recipes.grid import GridCell, choose, expand, label
from mdcg.report.files import csv_table, latex, latex_text, markdown
from mdcg.report.notebook import one_line
from mdcg.report.page.page import templates
from mdcg.report.page.payload import lean
from mdcg.report.sweep_tables import sweep_table
from mdcg.report.terminal import comparison
from mdcg.results.read import find_runs
from mdcg.results.settings import Section, Setting, gather
from mdcg.runs.finished import FinishedRun
from mdcg.runs.store import read_record
from mdcg.testing.abuse.browser import HOSTILE, check_csv, check_latex, check_markdown
from tests.conftest import Cli
from tests.fake_runs import finished, made_run, spec, with_rows
from tests.report.pages import page

EVIL = """</script><img src=x onerror=alert(1)>' onfocus=alert(2) " onclick=alert(3) &lt; {{ 7 * 7 }} $x$"""


def rivals() -> list[Section]:
    """At memory 500: md-cg 60 and md 60.02 tie, replay 50, ld 40; at 1000 md alone; naive without a memory."""
    return gather(
        [
            made_run(60, method="md-cg"), made_run(60.02, method="md"), made_run(50, method="replay"),
            made_run(40, method="ld"), made_run(70, method="md", memory=1000), made_run(99, method="naive", memory=0),
        ]
    )  # fmt: skip


def test_best_and_second_best() -> None:
    (section,) = rivals()
    marked = {section.settings[place].label: mark for place, mark in section.marks.items()}
    assert marked == {"md, memory 500": "best", "md-cg, memory 500": "best", "replay, memory 500": "second"}
    (two,) = gather([made_run(60), made_run(50, method="md")])
    assert list(two.marks.values()) == ["best"]


def test_latex() -> None:
    text = latex(rivals())
    assert r"md-cg & \cellcolor{blue!15}$60.0$ & $-40.0$ & -- & -- \\" in text
    assert r"md & \cellcolor{blue!15}$60.0$ & $-40.0$ & $70.0$ & $-30.0$ \\" in text
    assert r"replay & \cellcolor{purple!15}$50.0$" in text
    assert "ld & $40.0$" in text
    assert r"& \multicolumn{2}{c}{$M = 500$} & \multicolumn{2}{c}{$M = 1000$} \\" in text
    body = re.search(r"\\begin{tabular}{(l+r+)}(.*)\\end{tabular}", text, re.S)
    assert body
    for line in body[2].splitlines():
        if line.endswith(r"\\") and "multicolumn" not in line:
            assert line.count("&") == len(body[1]) - 1, line
    for word in ("table", "tabular"):
        assert text.count(rf"\begin{{{word}}}") == text.count(rf"\end{{{word}}}") == 1
    escaped = r"a\_b \& 5\% of \{c\}\textbackslash{}d \textasciitilde{}\textasciicircum{} \#1 \$x"
    assert latex_text(r"a_b & 5% of {c}\d ~^ #1 $x") == escaped
    spread = latex(gather([made_run(40), made_run(50, seed=1)]))
    assert r"$45.0 \pm 7.1$" in spread


def test_beside_the_papers_bwt_stands_that_of_the_end() -> None:
    run = made_run(60, tasks=3)
    assert run.record.metrics["BWT"] == pytest.approx(-80 / 3)
    assert run.record.metrics["BWT_final"] == pytest.approx(-40)
    text = latex(gather([run]))
    assert r"Method & ACC & BWT-final \\" in text
    assert r"md-cg & $60.0$ & $-40.0$ \\" in text
    sweep = Sweep([GridCell({"method": "md-cg"}, [run.spec])], Context(Path("nowhere")), "a title")
    settings = [Setting((run,), "md-cg", "md-cg", {"method": "md-cg"})]
    console = Console(width=100, record=True, file=io.StringIO())
    table, caption = sweep_table(sweep, settings, console)
    console.print(table)
    shown = console.export_text()
    assert "60.0 | -40.0" in shown
    assert "65.5 ± 3.2 | -35.7" in shown
    assert caption.startswith("ACC | BWT-final in percent, one seed; below it the paper's.")
    _, narrow = sweep_table(sweep, settings, Console(width=20, file=io.StringIO()))
    assert narrow.startswith("ACC in percent, one seed; below it the paper's.")


def swept(values: Sequence[tuple[dict[str, str], FinishedRun]]) -> list[list[str]]:
    """The table of a sweep with one run on each of these places of its grid, line by line."""
    cells = [GridCell(labels, [run.spec]) for labels, run in values]
    return table_of(cells, [run for _, run in values])


def table_of(cells: Sequence[GridCell], runs: Sequence[FinishedRun]) -> list[list[str]]:
    settings = [Setting((run,), "", "", cell.labels) for cell, run in zip(cells, runs, strict=True)]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(sweep_table(Sweep(cells, Context(Path("nowhere")), "a title"), settings, console)[0])
    return [re.split(r"\s{2,}", line.strip()) for line in console.export_text().splitlines()[2:] if line.strip()]


def test_an_axis_of_scenarios_and_memories_gives_the_columns_of_a_sweep() -> None:
    at = {"C10-5, 500": ("c10-5", 500), "C10-5, 20": ("c10-5", 20), "C100-10, 20": ("c100-10", 20)}
    made = [
        ({"cell": cell, "gates": gates}, made_run(acc + 10 * place, scenario=scenario, memory=memory, epochs=3))
        for place, (cell, (scenario, memory)) in enumerate(at.items())
        for gates, acc in (("none", 30), ("open", 40))
    ]
    header, _, *lines = swept(made)
    assert header == list(at)
    assert [line[0] for line in lines] == ["none", "open"]
    assert [[part.split()[0] for part in line[1:]] for line in lines] == [
        ["30.0", "40.0", "50.0"],
        ["40.0", "50.0", "60.0"],
    ]


CELLS = "axes: {cell: {%s}, method: [naive, md]}\nscenario: digits-5\nseeds: 0\n"


@pytest.mark.parametrize(
    ("recipe", "columns"),
    [
        (CELLS % '"D5, 50": {memory: 50}, "D5, 20": {memory: 20}', ["D5, 50", "D5, 20"]),
        (CELLS % "short: {memory: 50, epochs: 1}, long: {memory: 20, epochs: 3}", ["short", "long"]),
        (CELLS % "a: {memory: 50}, b: {memory: 20}, c: {memory: 30, lr: 0.3}", ["a", "b", "c"]),
        (CELLS % "a: {memory: 50}, b: {memory: 20, lr: 0.3}, c: {memory: 30}", ["a", "b", "c"]),
        (CELLS % "a: {memory: 50}, b: {memory: 20}, c: {memory: 20, first: 4}", ["a", "b", "c"]),
        (
            "axes: {cell: {a: {memory: 50, method: md}, none: {method: naive}, b: {memory: 20, method: md}}, "
            "lr: [1, 2]}\nscenario: digits-5\nseeds: 0\n",
            ["a", "none", "b"],
        ),
        (
            "axes: {cell: {a: {memory: 50}, b: {memory: 20}}, first: [2, 4], method: [naive, md]}\n"
            "scenario: digits-5\nseeds: 0\n",
            ["a", "b"],
        ),
    ],
)
def test_every_combination_of_a_grid_finds_its_own_run_in_the_table(recipe: str, columns: list[str]) -> None:
    """Also where several combinations mean the same runs, as those of a method without memory may."""
    digits = load("digits")
    combinations = expand(Document(yaml.safe_load(recipe)))
    cells = choose(combinations, lambda _: digits, {})
    header, _, *lines = table_of(cells, [finished(cell.specs[0]) for cell in cells])
    assert header == columns
    found = {name: dict(zip(columns, (part.split()[0] for part in parts), strict=True)) for name, *parts in lines}
    for one in combinations:
        (spec,) = one.recipe.resolve(digits)
        name = label(GridCell(one.labels, [spec]), without={"cell"})
        assert found[name][one.labels["cell"]] == f"{finished(spec).record.metrics['ACC']:.1f}"


def test_else_columns_are_sizes_of_memory() -> None:
    """A method without memory has a column of its own, and is no reason to make one of each method."""
    for axis in ("method", "compared"):
        made = [
            ({axis: method, "epochs": str(epochs)}, made_run(30 + epochs, method=method, memory=memory, epochs=epochs))
            for method, memory in (("naive", 0), ("ld", 500))
            for epochs in (1, 2)
        ]
        header, _, *lines = swept(made)
        assert header == ["no memory", "memory 500"]
        assert [line[0] for line in lines] == ["naive, epochs 1", "naive, epochs 2", "ld, epochs 1", "ld, epochs 2"]
    sizes = [({"memory": str(size)}, made_run(30, memory=size, method="ld")) for size in (500, 20)]
    assert swept(sizes)[0] == ["memory 20", "memory 500"]


def test_scenarios_with_one_memory_are_lines() -> None:
    """Their names do not say the memory, which is the column."""
    made = [
        ({"scenario": scenario, "method": method}, made_run(30, scenario=scenario, memory=50, method=method))
        for scenario in ("c10-5", "c100-10")
        for method in ("md", "replay")
    ]
    header, _, *lines = swept(made)
    assert header == ["memory 50"]
    assert [line[0] for line in lines] == ["c10-5, md", "c10-5, replay", "c100-10, md", "c100-10, replay"]


def test_methods_with_a_memory_of_their_own_are_lines() -> None:
    made = [
        ({"what": f"{size} {method}", "epochs": str(epochs)}, made_run(30, memory=size, method=method, epochs=epochs))
        for method, size in (("md", 20), ("replay", 500))
        for epochs in (1, 2)
    ]
    assert swept(made)[0] == ["memory 20", "memory 500"]


@pytest.mark.parametrize("scenarios", [["c10-5"], ["c10-5", "c100-10"]])
@pytest.mark.parametrize("axis", ["memory", "set.lam"])
def test_an_axis_that_only_some_methods_have(axis: str, scenarios: list[str]) -> None:
    """Naive has no memory, and Replay no λ: the grid leaves these axes out of their cells."""
    sizes = (50, 100) if axis == "memory" else (50, 50)
    other = ("naive", 0) if axis == "memory" else ("replay", 50)
    asked = [("md", memory, {axis: str(place)}) for place, memory in enumerate(sizes)] + [(*other, {})]
    made = [
        (
            {"scenario": scenario, "method": method} | labels,
            made_run(30, scenario=scenario, memory=memory, method=method),
        )
        for scenario in scenarios
        for method, memory, labels in asked
    ]
    header, _, *lines = swept(made)
    assert header == (["no memory", "memory 50", "memory 100"] if axis == "memory" else ["memory 50"])
    assert f"{scenarios[-1]}, {other[0]}" in [line[0] for line in lines]


def test_markdown() -> None:
    text = markdown(rivals())
    assert "| md | 500 | 1 | **60.0** |" in text
    assert "| replay | 500 | 1 | *50.0* |" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    evil = markdown(gather([made_run(method="a|b\n<i>")]))
    assert r"a\|b \<i\>" in evil


@pytest.mark.parametrize("place", ["method", "scenario", "backbone", "precision"])
def test_tables_whatever_things_are_called(place: str) -> None:
    """Read as others would: Markdown by a parser of it, LaTeX and CSV sign by sign."""
    names = [f"{name}-5" if place == "scenario" else name for name in HOSTILE]
    asked: list[dict[str, Any]] = [{place: name} for name in names]
    sections = gather([made_run(**one) for one in asked])
    check_markdown(markdown(sections), names)
    check_latex(latex(sections))
    check_csv(csv_table(sections))


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (lambda text: check_markdown(text, ()), "| a | b |\n|---|---|\n| x | y | z |\n| [x](y) | 1 |"),
        (lambda text: check_markdown(text, ()), "| a |\n|---|\n| <b>x</b> |"),
        (lambda text: check_markdown(text, ["gone"]), "| a |\n|---|\n| x |"),
        (check_latex, "\n\\input{x}"),
        (check_latex, "\n5% more"),
        (check_latex, "\n\\begin{tabular}{lrr}a & b & c \\\\\na & b \\\\\n\\end{tabular}"),
        (check_latex, "\n{a}}"),
        (check_csv, "a,b\n1, =x\n"),
        (check_csv, "a,b\n1\n"),
    ],
)
def test_tables_that_are_not_read_as_they_are_meant(check: Callable[[str], None], text: str) -> None:
    with pytest.raises(AssertionError):
        check(text)


def test_csv_gives_the_numbers_back() -> None:
    sections = gather([made_run(acc, seed=seed) for seed, acc in enumerate((40, 50))] + [made_run(method=EVIL)])
    rows = list(csv.DictReader(io.StringIO(csv_table(sections))))
    ours = [setting for section in sections for setting in section.settings]
    assert len(rows) == len(ours) == 2
    for row, setting in zip(rows, ours, strict=True):
        assert (row["scenario"], row["method"], int(row["memory"])) == ("c10-5", setting.spec.method, 500)
        assert int(row["runs"]) == len(setting.runs)
        assert json.loads(row["hyperparameters"]) == setting.spec.hyperparameters
        for name, spread in setting.stats.items():
            assert float(row[name]) == pytest.approx(spread.mean)
            assert (row[f"{name}_std"] == "") == math.isnan(spread.std)
    known = next(row for row in rows if row["method"] == "md-cg")
    assert known["seeds"] == "0 1"
    assert known["augment"] == "usual"
    assert float(known["paper_ACC"]) == 65.5
    assert float(known["difference"]) == pytest.approx(45 - 65.5)
    assert 0 < float(known["p"]) < 1


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of its data blocks."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.blocks: list[str] = []
        self.inside = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.inside = dict(attrs).get("type") == "application/json"
        if self.inside:
            self.blocks.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.blocks[-1] += data


def test_page_is_harmless_whatever_things_are_called() -> None:
    html = page(gather([made_run(method=EVIL, names=EVIL, folder=EVIL)]), EVIL)
    elements = Elements(html)
    assert "img" not in {tag for tag, _ in elements.found}
    assert not [1 for _, attributes in elements.found if any(key.startswith("on") for key in attributes)]
    blocks = [json.loads(block) for block in elements.blocks]
    assert blocks[0][0]["name"].startswith(EVIL)
    assert blocks[1]["runs"][0]["classes"][0][0] == [f"{EVIL} 0", 50.0]
    assert ["folder", EVIL] in blocks[1]["runs"][0]["facts"]
    assert html.count("</script>") == len(elements.blocks) + 3
    labels = {found["aria-label"] for _, found in elements.found if "aria-label" in found}
    assert f"compare {EVIL}, incremental, memory 500" in labels  # in an attribute, to the letter


def test_page_asks_for_nothing_from_elsewhere() -> None:
    elements = Elements(page(rivals(), "a title"))
    sources = {"src", "href", "data", "action", "srcset", "poster"}
    named = [attributes[name] for _, attributes in elements.found for name in sources & set(attributes)]
    assert all((source or "").startswith("data:image/svg+xml;base64,") for source in named)
    (policy,) = [found["content"] for tag, found in elements.found if "http-equiv" in found]
    assert policy
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_page_shows_its_numbers_without_a_script() -> None:
    runs = [made_run(acc, seed=seed) for seed, acc in enumerate((64.5, 65, 66))]
    html = page(gather([*runs, made_run(method="naive", memory=0, hold_out=0.1)]), "Results")
    for text in ("65.2 ± 0.8", "65.5 ± ", "-0.3", "no, p = ", "4 runs", "2 settings"):
        assert text in html, text
    assert "finished 2026-01-01 to 2026-01-03" in html
    first, second = html.split('<section data-section="1"')
    assert "paper’s ACC" in first
    assert "paper’s ACC" not in second.split("</section>")[0]  # it has no number for held-out images


def test_only_the_best_are_compared_at_first() -> None:
    """Thirteen lines would be too many; a name is chosen with all its memory sizes."""
    few = [made_run(60, memory=100 * size) for size in range(1, 6)]
    many = [made_run(50, method="replay", memory=100 * size) for size in range(1, 9)]
    elements = Elements(page(gather([*few, *many]), "a title"))
    boxes = [found for _, found in elements.found if found.get("class") == "choose"]
    assert len(boxes) == 13
    checked = {str(found["aria-label"]) for found in boxes if "checked" in found}
    assert checked == {f"compare md-cg, memory {100 * size}" for size in range(1, 6)}


def test_data_has_no_nan_and_ends_no_script() -> None:
    content = {"R": np.array([[1.23456789, math.nan]]), "text": "<!--</script>&'\u2028", "inf": math.inf}
    text = templates().from_string("{{ content | tojson }}").render(content=content)
    assert json.loads(text) == {"R": [[1.2346, None]], "text": content["text"], "inf": None}
    assert not set("<>&'\u2028") & set(text)
    assert lean([math.nan, 1, "a", None, True]) == [None, 1, "a", None, True]


def test_one_task_and_a_foreign_history_do_no_harm() -> None:
    run = made_run(tasks=1)
    run.record.history = [{"task": "one"}, {}, {"task": 1, "epoch": 1, "loss": math.nan, "train_accuracy": 1}]
    html = page(gather([run]), "one task")
    (block,) = [json.loads(block) for block in Elements(html).blocks][1:]
    assert block["runs"][0]["loss"] == [None]
    assert block["runs"][0]["forgetting"] == []
    assert "--" in latex(gather([run]))


def store(run: FinishedRun, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(run.record.model_dump()))


def test_command(cli: Cli, runs: Path, tmp_path: Path) -> None:
    for seed in range(2):
        store(made_run(60, seed=seed), runs / "deep" / "er" / f"run {seed}")
    store(made_run(60, method="replay"), runs / "replay")
    out = tmp_path / "new" / "report"
    answer = cli("report", runs, "--out", out)
    assert answer.code == 0
    assert answer.err == ""
    assert answer.out.splitlines()[-1] == f"report: {out / 'index.html'}"
    assert {file.name for file in out.iterdir()} == {"index.html", "table.md", "table.tex", "table.csv"}
    assert "| md-cg | 500 | 2 |" in (out / "table.md").read_text()


def test_command_skips_what_it_cannot_read(cli: Cli, runs: Path, tmp_path: Path) -> None:
    store(made_run(60), runs / "good")
    for number, text in enumerate(("", "{}", "[1, 2", '{"R": 1}', "\0")):
        (runs / f"bad {number}").mkdir()
        (runs / f"bad {number}" / "result.json").write_text(text)
    (runs / "odd" / "result.json").mkdir(parents=True)
    strange = made_run(60, scenario="no scenario")
    store(strange, runs / "strange")
    huge = made_run(60, method="replay")
    huge.record.correct = [*huge.record.correct[:-1], [10**400, *huge.record.correct[-1][1:]]]
    store(huge, runs / "huge")
    answer = cli("report", runs, "--out", tmp_path / "out")
    assert answer.code == 0
    assert answer.err.startswith("mdcg: left out results that are damaged or not ours: 7, the first: ")
    assert len(list(csv.DictReader((tmp_path / "out" / "table.csv").open()))) == 1


def test_a_copy_is_no_second_run(cli: Cli, runs: Path, tmp_path: Path) -> None:
    store(made_run(60), runs / "a")
    shutil.copytree(runs / "a", runs / "b")
    answer = cli("report", runs, "--out", tmp_path / "out")
    assert answer.err == "mdcg: left out older copies of the same runs: 1\n"
    (row,) = csv.DictReader((tmp_path / "out" / "table.csv").open())
    assert row["runs"] == "1"


def test_command_with_mistakes(cli: Cli, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no folder runs" in cli("report", "--out", tmp_path / "o").sentence()
    runs.mkdir()
    assert "there is no finished run in" in cli("report", runs).sentence()
    (runs / "x").mkdir()
    (runs / "x" / "result.json").write_text("damaged")
    assert "(1 could not be read)" in cli("report", runs).sentence()
    file = tmp_path / "file"
    file.write_text("")
    assert "is not a folder" in cli("report", file).sentence()
    store(made_run(60), runs / "good")
    (runs / "x" / "result.json").unlink()
    assert "cannot write" in cli("report", runs, "--out", file).sentence()
    assert "cannot write" in cli("report", runs, "--out", file / "below").sentence()
    assert not (tmp_path / "report").exists()


def test_a_closed_folder_is_counted(cli: Cli, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(made_run(60), runs / "good")
    store(made_run(60), runs / "closed")
    original = os.scandir

    def scandir(path: Any) -> Any:  # a mode would not keep root out
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", path)
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert "not ours: 1" in cli("report", runs, "--out", tmp_path / "out").err


def test_names_that_are_no_text(tmp_path: Path) -> None:
    store(made_run(60), Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")))
    (found,) = find_runs(tmp_path).runs
    assert found.folder.is_dir()
    assert found.printable == f"{tmp_path}/\ufffd\ufffd"
    with pytest.raises(MdcgError):
        read_record(tmp_path)


def test_figures_of_runs_whose_names_are_no_text(cli: Cli, tmp_path: Path) -> None:
    """A path cannot be made of its printable form again: what was measured would not be found."""
    looks = [{"task": task, "epoch": 1, "step": 0, "kl": [0.5] * task} for task in range(2, 6)]
    run = with_rows(finished(spec("md-cg")), "drift", looks, tmp_path / "made")
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/runs/\xff\xfe"))
    store(run, folder)
    (run.folder / "measured").rename(folder / "measured")
    assert cli("report", tmp_path / "runs", "--out", tmp_path / "out").code == 0
    html = (tmp_path / "out" / "index.html").read_text("utf-8")
    assert "figure-0-drift" in {attributes.get("id") for tag, attributes in Elements(html).found if tag == "figure"}
    assert "left out" not in html


def test_no_two_elements_have_one_id(cli: Cli, tmp_path: Path) -> None:
    """Each section has its own figures."""
    for number, scenario in enumerate(("c10-5", "c10-2")):
        store(finished(spec("md-cg", scenario=scenario)), tmp_path / "runs" / str(number))
    assert cli("report", tmp_path / "runs", "--out", tmp_path / "out").code == 0
    found = Elements((tmp_path / "out" / "index.html").read_text("utf-8")).found
    ids = [attributes["id"] for _, attributes in found if "id" in attributes]
    assert sum(str(one).endswith("-forgetting") for one in ids) == 2
    assert len(set(ids)) == len(ids)


def test_optimisation_and_augmentation_are_named(cli: Cli, runs: Path) -> None:
    words = ["run", "--scenario", "digits-2", "--method", "naive", "--epochs", 1, "--out", runs]
    assert cli(*words, "--optimizer", "sgd,adamw", "--schedule", "cosine", "--augment", "crop+jitter").code == 0
    assert cli("report", runs, "--out", runs / "page").code == 0
    table = (runs / "page" / "table.md").read_text()
    assert "schedule cosine, augment crop+jitter, jitter strength 0.4" in table
    assert "optimizer adamw" in table


def test_what_is_not_default_is_said_below_a_comparison() -> None:
    """Heads and settings that all runs of a method have in common; what tells them apart is in their names."""

    def said(*runs: FinishedRun) -> list[str]:
        settings = [Setting((run,), str(place), str(place)) for place, run in enumerate(runs)]
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(comparison(settings, "a title", console))
        return [line.strip() for line in console.export_text().splitlines()[-3:] if ":" in line]

    assert said(made_run(), made_run(method="replay")) == []
    gated = made_run(method="replay", head="cascaded-gates")
    assert said(made_run(), gated) == ["replay: head cascaded-gates"]
    grid = [made_run(hyperparameters={"lam": lam, "divergence": "student-teacher"}) for lam in (0.1, 1.0)]
    assert said(*grid) == ["md-cg: divergence student-teacher"]
    assert one_line(Setting((gated,), "replay", "replay")).startswith(
        "replay on c10-5, memory 500, head cascaded-gates, "
    )
