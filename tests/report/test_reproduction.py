"""The paper's tables cell by cell: against runs made up by hand, and the committed page against the committed runs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mdcg import paper
from mdcg.errors import MdcgError
from mdcg.methods import METHODS
from mdcg.methods.base import Preset
from mdcg.recipes.presets import PRESETS, preset_of
from mdcg.recipes.recipe import Recipe
from mdcg.report.files import markdown
from mdcg.report.notes import NOTES, read_notes
from mdcg.report.reproduction import BEGIN, END, compared, reproduction, write_reproduction
from mdcg.results.read import find_runs
from mdcg.results.settings import gather, paper_cell
from mdcg.runs.archive import write_archive
from mdcg.runs.finished import FinishedRun
from mdcg.runs.record import Record
from mdcg.runs.spec import RunSpec
from mdcg.scenario import parse
from tests.conftest import Cli, toy_dataset

ROOT = Path(__file__).parents[2]
CLASSES = {"cifar10": 10, "cifar100": 100, "tinyimagenet": 200}
DATASETS = {name: replace(toy_dataset([1] * classes), name=name) for name, classes in CLASSES.items()}


def asked(scenario: str, method: str, memory: int, head: str = "", preset: Preset = "paper", **more: Any) -> RunSpec:
    """The run that a recipe means."""
    more |= {"memory": [memory]} if memory else {}
    recipe = Recipe(scenario=scenario, method=method, preset=preset, head=head or None, **more)
    (spec,) = recipe.resolve(DATASETS[parse(scenario)[0]])
    return spec


# ---- presets ----


@pytest.mark.parametrize("scenario", sorted({cell.scenario for cell in paper.cells()}))
def test_presets_are_those_of_recipes(scenario: str) -> None:
    for cell in paper.cells():
        if cell.scenario == scenario:
            usual, published = (
                asked(scenario, cell.method, cell.memory, cell.head, preset=preset) for preset in PRESETS
            )
            assert preset_of(usual) == "paper", cell
            assert preset_of(published) == ("paper" if published == usual else "published"), cell
            expected = paper.cell(scenario, cell.method, cell.memory, cell.head)
            assert paper_cell(usual) == paper_cell(published) == expected


def test_what_matters_for_a_preset() -> None:
    usual, published = (asked("c10-5", "md-cg", 500, preset=preset) for preset in PRESETS)
    assert usual != published
    for free in ({"precision": "bf16"}, {"precision": "fp32"}, {"evaluate_every": 5}, {"seed": 7}):
        assert preset_of(usual.model_copy(update=free)) == "paper"
        assert preset_of(published.model_copy(update=free)) == "published"
    for departure in (
        {"hold_out": 0.1}, {"epochs": 1}, {"backbone": "resnet32"}, {"batch_size": 64}, {"lr": 0.1},
        {"momentum": 0.9}, {"scenario": "digits-5"}, {"method": "gone"}, {"head": "gone"},
        {"augmentation": "published"}, {"passes": "separate"}, {"head_settings": {"gamma": 2.0, "beta": 10.0}},
        {"hyperparameters": {**usual.hyperparameters, "lam": 9.0}},
        {"hyperparameters": {**usual.hyperparameters, "gone": 1}},
    ):  # fmt: skip
        assert preset_of(usual.model_copy(update=departure)) is None, departure
    assert preset_of(usual.model_copy(update={"head": published.head})) is None  # half of one, half of the other
    assert preset_of(published.model_copy(update={"head": usual.head})) is None
    assert preset_of(asked("c10-5", "md-cg", 500, preset="published", set={"lam": 9.0})) is None


@pytest.mark.parametrize(("method", "preset"), [("er-lode", "paper"), ("ss-il", "paper"), ("ld", None)])
def test_runs_that_are_older_than_a_setting(method: str, preset: Preset | None) -> None:
    """What they did then is what counts: LD's divergence was not today's."""
    content = asked("c10-5", method, 500).model_dump(exclude={"passes"})
    for name in METHODS[method].added:
        del content["hyperparameters"][name]
    assert preset_of(RunSpec.model_validate(content)) == preset


def test_runs_of_an_older_format() -> None:
    spec = asked("c100-10", "replay", 500)
    assert preset_of(spec) == "paper"
    assert preset_of(spec.model_copy(update={"format": 1})) is None


# ---- the page, from made-up runs ----


def made(spec: RunSpec, acc: float, bwt_final: float = -5.0) -> FinishedRun:
    """A run that ends with `acc` percent on each of five tasks, the first four of which lost as much as asked for."""
    learned, final = round(100 * (acc - bwt_final)), round(100 * acc)
    correct = [[learned if i == j else 0 for j in range(5)] for i in range(4)]
    record = Record(
        spec=spec, sizes=[2] * 5, order=list(range(10)), class_names=list("abcdefghij"), total=[10_000] * 5,
        correct=[*correct, [final] * 5], memory={}, history=[], seconds=1.0,
    )  # fmt: skip
    return FinishedRun(Path("nowhere"), record)


def several(accs: Sequence[float], *about: Any, bwt_final: float = -5.0, **more: Any) -> list[FinishedRun]:
    """One for each seed."""
    spec = asked("c10-5", *about, **more)
    return [made(spec.model_copy(update={"seed": seed}), acc, bwt_final) for seed, acc in enumerate(accs)]


NEAR = [49.0, 50.0, 51.0, 52.0, 48.0]  # mean 50, std 1.58; Replay with 500 images has 50.2 ± 3.6 in the paper
FAR = [70.0, 71.0, 72.0, 73.0, 74.0]  # mean 72, std 1.58; with 1,000 images it has 61.1 ± 2.3
CLOSE = [65.0, 66.0, 63.0, 64.0, 67.0]  # mean 65, std 1.58; with 2,000 images it has 61.1 ± 2.3


def p_of(accs: Sequence[float], acc: float, std: float) -> float:
    ours = (np.mean(accs), np.std(accs, ddof=1), len(accs))
    return float(stats.ttest_ind_from_stats(*ours, acc, std, 5, equal_var=False).pvalue)


def lines(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]


def test_a_table_by_hand() -> None:
    runs = [*several(NEAR, "replay", 500), *several(FAR, "replay", 1000), *several(CLOSE, "replay", 2000)]
    runs += several([30.0], "replay", 200)  # too few for p, and not in the family
    text = reproduction(runs, {})
    near, far, close = p_of(NEAR, 50.2, 3.6), p_of(FAR, 61.1, 2.3), p_of(CLOSE, 61.1, 2.3)
    assert far < close < 0.05 < near
    assert 2 * close < 0.05
    lost = "-5.0 ± 0.0"
    rows = [
        ("200", "1", "30.0", "same", "38.8 ± 3.3", "", "", "-5.0", "", "-69.4 ± 5.0"),
        ("500", "5", "50.0 ± 1.6", "same", "50.2 ± 3.6", f"{near:.3f}", "", lost, "", "-53.6 ± 5.1"),
        ("1,000", "5", "**72.0 ± 1.6**", "same", "61.1 ± 2.3", "< 0.001", "", lost, "", "-38.8 ± 4.3"),
        ("2,000", "5", "**65.0 ± 1.6**", "same", "61.1 ± 2.3", f"{2 * close:.3f}", "", lost, "", "-31.0 ± 4.0"),
    ]  # fmt: skip
    assert lines(text, "| Replay") == [f"| Replay | {' | '.join(row)} |" for row in rows]
    assert "- Table 1, C10-5, Replay, memory 1,000 and 2,000 (+10.9, +3.9): not explained.\n" in text
    (missing,) = lines(text, "- Table 1, C10-5: ")
    assert missing.startswith(
        "- Table 1, C10-5: Naive; Cumulative (0 of 5); Replay 200 (1 of 5); GEM 200 to 2,000; DER 200"
    )
    assert missing.endswith("MD-CG 200 to 2,000 (0 of 5)")
    assert "- Table 1, C100-10: all 41 cells (0 of 5)\n" in text
    assert "- Table 3, TyM-20: all 10 cells (0 of 5)\n" in text
    table = lines(text, "|")
    assert len({line.count("|") for line in table}) == 1
    assert len(table) == 2 + 42
    assert [line.split("|")[1].strip() for line in table[2:]] == [
        cell.row for cell in paper.cells() if cell.table == 1 and cell.scenario == "c10-5"
    ]
    assert "Table 2" not in text


def test_the_family_is_the_printed_table_and_the_preset() -> None:
    """Another scenario of the table joins it, another table or preset does not."""
    runs = several(CLOSE, "replay", 2000)

    def p(more: list[FinishedRun], preset: Preset = "paper", method: str = "replay", memory: int = 2000) -> float:
        (one,) = [
            one
            for one in compared([*runs, *more])
            if (one.cell.table, one.cell.scenario, one.cell.method, one.cell.memory) == (1, "c10-5", method, memory)
        ]
        return one.p[preset]

    alone = p_of(CLOSE, 61.1, 2.3)
    assert p([]) == pytest.approx(alone)
    elsewhere = [
        made(asked("c100-10", "replay", 500).model_copy(update={"seed": seed}), acc)
        for seed, acc in enumerate((17, 18))
    ]
    assert p(elsewhere) == pytest.approx(2 * alone)
    tiny = [made(asked("tym-10", "replay", 2000).model_copy(update={"seed": seed}), 12 + seed) for seed in range(2)]
    published = several([60.0, 61.0, 63.0], "er-ace", 500, preset="published")
    heads = several([60.0, 61.0, 63.0], "md-cg", 500, "single-gate")
    assert p([*tiny, *published, *heads]) == pytest.approx(alone)
    assert p(published, "published", "er-ace", 500) == pytest.approx(p_of([60.0, 61.0, 63.0], 57.5, 1.6))


def test_presets_stand_side_by_side() -> None:
    runs = several([57.0, 58.0], "er-ace", 500, bwt_final=-10.0)
    runs += several([80.0, 81.0, 82.0], "er-ace", 500, preset="published", bwt_final=-7.0)
    runs += several([90.0, 91.0, 92.0], "er-ace", 500, set={"memory_batch": 7})  # neither
    text = reproduction(runs, {})
    first, second = lines(text, "| ER-ACE | 500")
    assert first.startswith("| ER-ACE | 500 | 2 / 3 | 57.5 ± 0.7 | **81.0 ± 1.0** | 57.5 ± 1.6 | ")
    assert first.endswith("| < 0.001 | -10.0 ± 0.0 | -7.0 ± 0.0 | -17.5 ± 3.2 |")
    assert second == "| ER-ACE | 500 | 2 / 3 | 57.5 ± 0.7 | 81.0 ± 1.0 | 56.3 |"  # Table 3
    assert "- Table 1, C10-5, ER-ACE, memory 500, published (+23.5): not explained." in text
    (few,) = lines(text, "- Table 3, C10-5: ")
    assert "ER-ACE 500 (2 of 5)" in few
    (published,) = lines(text, "- Table 1, C10-5, published: ")
    assert "ER-ACE 200, 1,000 and 2,000" in published
    assert "Naive" not in published  # the same


def test_of_equals_the_outcome_does_not_decide() -> None:
    """Two precisions with as many seeds: the same one is shown, whichever of them has the higher ACC."""
    shown = set()
    for better in ("tf32", "fp32"):
        runs = [
            run
            for precision in ("tf32", "fp32")
            for run in several([70.0 if precision == better else 50.0] * 2, "replay", 500, precision=precision)
        ]
        (one,) = (one for one in compared(runs) if one.ours)
        shown.add(one.ours["paper"].spec.precision)
    assert len(shown) == 1


def test_runs_of_different_precision_are_not_averaged() -> None:
    def shown(**counts: int) -> str:
        runs: list[FinishedRun] = []
        for precision, count in counts.items():
            acc = {"bf16": 20.0, "tf32": 30.0, "fp32": 40.0}[precision]
            runs += several([acc] * count, "replay", 500, precision=precision)
        (line,) = lines(reproduction(runs, {}), "| Replay | 500")
        return line.split(" | ")[3].strip("*")

    assert shown(tf32=2, bf16=2) == shown(bf16=2, tf32=2) == "20.0 ± 0.0"
    assert shown(tf32=3, bf16=2, fp32=1) == "30.0 ± 0.0"


def test_tables_without_runs() -> None:
    text = reproduction(several([50.0] * 5, "md", 500), {})  # in Table 3 alone
    assert lines(text, "### ") == ["### Table 3, C10-5", "### Cells that differ", "### Missing"]
    assert "### Cells that differ\n\nNone.\n" in text
    assert "| No CG | 500 | 5 / 0 | 50.0 ± 0.0 |  | 62.7 |" in text
    tiny = reproduction([made(asked("tym-20", "md-cg", 2000), 20.0)], {})
    assert lines(tiny, "### ")[:2] == ["### Table 2, TyM-20", "### Table 3, TyM-20"]
    assert "- Table 2, TyM-10: all 12 cells (0 of 5)" in tiny


def test_nothing_is_missing() -> None:
    runs = [
        made(
            asked(cell.scenario, cell.method, cell.memory, cell.head, preset).model_copy(update={"seed": seed}),
            cell.acc,
        )
        for cell in paper.cells()
        for preset in PRESETS
        for seed in range(5)
    ]
    every = {run.record.spec.name: run for run in runs}
    text = reproduction(every.values(), {})
    assert text.endswith("### Missing\n\nNothing.\n")
    assert "### Table 2, TyM-50" in text


# ---- the file ----


def test_the_page_is_made_and_renewed(tmp_path: Path) -> None:
    page, notes = tmp_path / "new" / "page.md", tmp_path / NOTES
    write_reproduction(page, several(FAR, "replay", 1000), notes)
    text = page.read_text()
    assert text.startswith(f"{BEGIN}\n\n## ")
    assert text.endswith(f"\n\n{END}\n")
    assert "**72.0 ± 1.6**" in text
    write_reproduction(page, several(FAR, "replay", 1000), notes)
    assert page.read_text() == text
    above, below = "# Mine\r\n\r\nBy hand: é. ", "\r\nand more\nwithout an end"
    page.write_bytes((above + text.strip() + below).encode())
    write_reproduction(page, several(FAR, "replay", 1000), notes)
    assert page.read_bytes().decode() == above + text.strip() + below
    write_reproduction(page, several(NEAR, "replay", 500), notes)
    renewed = page.read_bytes().decode()
    assert renewed.startswith(above + BEGIN)
    assert renewed.endswith(END + below)
    assert "72.0 ± 1.6" not in renewed
    assert [path.name for path in page.parent.iterdir()] == ["page.md"]


@pytest.mark.parametrize(
    "text", ["", "# Mine", BEGIN, END, f"{END} {BEGIN}", f"{BEGIN} {BEGIN} {END}", f"{BEGIN} {END} {END}"], ids=repr
)
def test_a_page_without_a_place_for_tables(text: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text)
    with pytest.raises(MdcgError, match="does not say where the tables go; put in two lines: <!-- From"):
        write_reproduction(tmp_path / "page.md", [], tmp_path / NOTES)
    assert (tmp_path / "page.md").read_text() == text


def test_the_command(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = several(FAR, "replay", 1000)
    write_archive(Path("runs/all.jsonl"), [run.record for run in runs])
    Path("runs/notes.yaml").write_text("- {table: 1, scenario: c10-5, method: replay, says: 'It is |\n  known.'}")
    answer = cli("report", "--reproduction", "page.md")
    assert (answer.code, answer.out, answer.err) == (0, "reproduction: page.md\n", "")
    assert "- Table 1, C10-5, Replay, memory 1,000 (+10.9): It is | known.\n" in Path("page.md").read_text()
    assert not Path("report").exists()
    Path("page.md").write_bytes(b"\xff")
    assert "page.md is no text; give a Markdown file." in cli("report", "--reproduction", "page.md").sentence()
    assert "runs is a folder; name a file" in cli("report", "--reproduction", "runs").sentence()
    Path("link.md").symlink_to("nowhere")
    assert "is a link that leads nowhere" in cli("report", "--reproduction", "link.md", "--force").sentence()
    assert "cannot write runs/all.jsonl/x.md" in cli("report", "--reproduction", "runs/all.jsonl/x.md").sentence()
    Path("runs/notes.yaml").write_text("- {table: 1")
    assert "runs/notes.yaml is not valid YAML" in cli("report", "--reproduction", "other.md").sentence()
    assert not Path("other.md").exists()


# ---- notes ----


def cell(memory: int, table: int = 1, method: str = "replay") -> paper.Cell:
    wanted = (table, "c10-5", method, memory)
    (found,) = [one for one in paper.cells() if (one.table, one.scenario, one.method, one.memory) == wanted]
    return found


def test_notes_are_about_cells(tmp_path: Path) -> None:
    path = tmp_path / NOTES
    assert read_notes(path) == {}
    path.write_text("")
    assert read_notes(path) == {}
    path.write_text("""
- {table: 1, scenario: c10-5, method: replay, memory: 2000, says: one}
- {table: 1, scenario: c10-5, method: replay, memory: [200, 500], says: "two\\nlines"}
- {table: 1, scenario: c10-5, method: er-ace, preset: published, says: every size}
- {table: 1, scenario: c10-5, method: naive, says: no memory}
""")
    assert read_notes(path) == {
        (cell(2000), "paper"): "one",
        (cell(200), "paper"): "two lines",
        (cell(500), "paper"): "two lines",
        **{(cell(memory, method="er-ace"), "published"): "every size" for memory in (200, 500, 1000, 2000)},
        (cell(0, method="naive"), "paper"): "no memory",
    }


def test_an_explanation_is_for_its_preset_alone() -> None:
    runs = several([57.0, 58.0], "er-ace", 500) + several([80.0, 81.0, 82.0], "er-ace", 500, preset="published")
    about = cell(500, method="er-ace")
    assert "published (+23.5): not explained." in reproduction(runs, {(about, "paper"): "known."})
    text = reproduction(runs, {(about, "published"): "known.", (cell(200), "paper"): "of a cell that does not differ."})
    assert "published (+23.5): known.\n" in text
    assert "of a cell that does not differ" not in text


GOOD = "- {table: 1, scenario: c10-5, method: replay, memory: 500, says: x}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- {table: 1", "is not valid YAML"),
        ("\0", "is not valid YAML"),
        ("- 2026-99-99", "is not valid YAML"),
        ("table: 1", "must be a list of notes"),
        ("words", "must be a list of notes"),
        (GOOD + "- words", "entry 2: input should be a valid dictionary"),
        (GOOD + GOOD, "entry 2: another entry is about the same cell; keep one."),
        (GOOD.replace("500", "[500, 7]"), "1: Table 1 of the paper has no ± for replay on c10-5 with memory 500 and 7"),
        (GOOD.replace("500", "many"), "entry 1: 'memory' is wrong: input should be a valid integer"),
        (GOOD.replace("replay", "mdcg"), "entry 1: Table 1 of the paper has no ± for mdcg on c10-5 with memory 500"),
        (GOOD.replace("c10-5", "c10-6"), "no ± for replay on c10-6"),
        (GOOD.replace("table: 1", "table: 3").replace("replay", "md-cg"), "Table 3 of the paper has no ± for md-cg"),
        (GOOD.replace("says", "say"), "entry 1: 'says' is wrong: field required"),
        (GOOD.replace("says: x", "says: ''"), "'says' is wrong"),
        (GOOD.replace("says", "preset: mine, says"), "'preset' is wrong: input should be 'paper' or 'published'"),
    ],
)  # fmt: skip
def test_mistakes_in_notes(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / NOTES).write_text(text)
    with pytest.raises(MdcgError) as caught:
        read_notes(tmp_path / NOTES)
    assert told in str(caught.value)
    assert str(tmp_path / NOTES) in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- what is committed ----


def test_the_committed_tables_are_those_of_the_committed_runs() -> None:
    """If they are not: mdcg report results --reproduction docs/reproduction.md, and table.md of mdcg report results."""
    found = find_runs(ROOT / "results")
    assert (found.unreadable, found.copies) == (0, 0)
    page = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    expected = f"{BEGIN}\n\n{reproduction(found.runs, read_notes(ROOT / 'results' / NOTES))}\n{END}"
    assert page[page.index(BEGIN) : page.index(END) + len(END)] == expected
    assert (ROOT / "results" / "table.md").read_text("utf-8") == markdown(gather(found.runs))


def test_a_method_with_training_of_its_own_is_one_line_of_a_chart() -> None:
    """Though its weight decay depends on the memory: not with two and five images of a class, with ten and twenty."""
    runs = [run for run in find_runs(ROOT / "results").runs if run.spec.method in ("replay", "md-replay")]
    settings = [setting for section in gather(runs) for setting in section.settings]
    ours = [setting.spec for setting in settings if setting.name == "md-replay, its own training"]
    wanted = [*itertools.product(("c10-5", "c100-10"), (200, 500, 1000, 2000)), ("tym-10", 2000)]
    assert sorted((spec.scenario, spec.memory) for spec in ours) == wanted
    assert {spec.weight_decay for spec in ours if spec.scenario == "c100-10"} == {0.0, 5e-4}
