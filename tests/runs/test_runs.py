"""`mdcg runs`: conditions against a brute-force reading of them, exports read back, one sentence for mistakes."""

from __future__ import annotations

import csv
import io
import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich import box
from rich.console import Console

from mdcg import extras
from mdcg.cli.runs import _lines, _print, _table
from mdcg.errors import MdcgError
from mdcg.runs.export import KINDS, columns, row_of
from mdcg.runs.query import Filter, find_key, in_order, parse_filter, select
from mdcg.runs.spec import SETTINGS
from mdcg.runs.store import Store
from mdcg.terminal import PlainConsole
from tests.conftest import Cli

WORDS = ["md-cg", "replay", "naive", "5"]
numbers = st.one_of(st.integers(-3, 3), st.floats(-3, 3, allow_nan=False).map(lambda value: round(value, 1)))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "memory": st.integers(0, 4),
    "ACC": st.one_of(st.none(), numbers),
    "method": st.sampled_from(WORDS),
    "set.lam": numbers,
    "set.mixed": st.one_of(st.integers(0, 9), st.sampled_from(WORDS)),
    "set.flag": st.booleans(),
    "finished": st.sampled_from(["2025-12-31T10:00", "2026-01-01T00:00", "2026-02-03T04:05"]),
}
rows_of_runs = st.lists(
    st.fixed_dictionaries(
        {key: VALUES[key] for key in ("memory", "ACC", "method", "finished")},
        optional={key: VALUES[key] for key in ("set.lam", "set.mixed", "set.flag")},
    ),
    min_size=1,
    max_size=8,
)


def meets(value: Any, sign: str, wanted: list[Any]) -> bool:
    """What a condition means, on values in place of words."""
    if sign in ("=", "!="):
        same = False
        for other in wanted:
            if type(value) is bool or type(other) is bool:
                same = same or value is other
            elif isinstance(value, str) or isinstance(other, str):
                same = same or (value is not None and str(value) == str(other))
            else:
                same = same or value == other
        return same == (sign == "=")
    if value is None or isinstance(value, str) != isinstance(wanted[0], str):
        return False
    less, equal = value < wanted[0], value == wanted[0]
    return bool({"<": less, "<=": less or equal, ">": not less and not equal, ">=": not less}[sign])


def as_written(value: Any) -> str:
    return str(value).lower() if type(value) is bool else str(value)


@given(rows_of_runs, st.data())
def test_conditions_mean_what_they_say(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    texts, expected = [], set(range(len(rows)))
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(list(VALUES)))
        values = [row[key] for row in rows if row.get(key) is not None]
        if not values:
            continue
        ordered = key == "finished" or any(type(value) in (int, float) for value in values)
        sign = data.draw(st.sampled_from(["=", "!=", *(["<", "<=", ">", ">="] if ordered else [])]))
        if sign in ("=", "!="):
            wanted = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        elif key == "finished":
            wanted = [data.draw(VALUES[key])]
        else:
            wanted = [data.draw(numbers)]
        texts.append(key + sign + ",".join(map(as_written, wanted)))
        expected &= {place for place, row in enumerate(rows) if meets(row.get(key), sign, wanted)}
    assert select(rows, [parse_filter(text, rows) for text in texts]) == sorted(expected)


@given(rows_of_runs, st.sampled_from(list(VALUES)), st.booleans())
def test_order(rows: list[dict[str, Any]], key: str, down: bool) -> None:
    order = in_order(rows, key, down)
    assert sorted(order) == list(range(len(rows)))
    values = [rows[place].get(key) for place in order]
    there = [value for value in values if value is not None]
    assert values == there + [None] * (len(values) - len(there))  # what is missing comes last, up or down
    for kind in (str, int | float):
        same = [value for value in there if isinstance(value, kind)]
        assert same == sorted(same, reverse=down)


def test_names_as_people_write_them() -> None:
    rows = [{"BWT_final": 1.0, "ACC": 2.0, "batch_size": 3}]
    assert [find_key(name, rows) for name in ("bwt-final", "acc", "Batch-Size")] == ["BWT_final", "ACC", "batch_size"]
    assert parse_filter(" acc >= 1e0 ", rows) == Filter("ACC", ">=", ("1e0",))
    assert parse_filter("acc==2", rows).sign == "="


ROWS = [{"method": "md", "memory": 500, "ACC": 60.0, "set.lam": 0.5, "set.on": True, "finished": "2026-01-01"}, {}]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("memory>=big", "'memory>=big' does not fit: memory is a number, 'big' is not"),
        ("memory=big", "memory is a number"),
        ("memory=500,big", "'big' is not"),
        ("memory>nan", "'nan' is not"),
        ("set.on=maybe", "set.on is true or false, not 'maybe'"),
        ("set.on>1", "set.on is not a number; use = or !="),
        ("method>md", "method is not a number; use = or !="),
        ("memroy=500", "did you mean 'memory'"),
        ("lam<0.5", "did you mean 'set.lam'"),
        ("memory>1,2", "only = and != take more than one"),
        ("method=md,,replay", "empty value"),
        ("method=", "is no filter"),
        ("=md", "is no filter"),
        ("method", "is no filter"),
        ("", "is no filter"),
        ("memory=>5", "is no filter"),
        ("memory<>5", "is no filter"),
    ],
)
def test_mistakes_in_conditions(text: str, told: str) -> None:
    with pytest.raises(MdcgError) as caught:
        parse_filter(text, ROWS)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six runs of three methods; one name is a number in one method's settings and a word in another's."""
    import mdcg

    out = tmp_path_factory.mktemp("several")
    asked: dict[str, Any] = {
        "scenario": "digits-2",
        "epochs": 1,
        "batch_size": 64,
        "seeds": range(2),
        "out": out,
        "quiet": True,
    }
    mdcg.run(method="naive", **asked)
    mdcg.run(method="md-cg", memory=20, set={"lam": 0.4}, **asked)
    mdcg.run(method="er-ace", memory=40, **asked)
    return out


def chosen(cli: Cli, out: Path, *words: object) -> list[tuple[str, int]]:
    answer = cli("runs", *words, "--out", out, "--json")
    assert answer.code == 0, answer.err
    content = json.loads(answer.out)
    assert content["unreadable"] == []
    return [(run["method"], run["seed"]) for run in content["runs"]]


def test_runs_are_found(cli: Cli, several: Path) -> None:
    assert len(chosen(cli, several)) == 6
    assert set(chosen(cli, several, "method=md-cg,er-ace", "seed!=1")) == {("md-cg", 0), ("er-ace", 0)}
    assert set(chosen(cli, several, "memory>=20", "memory<40")) == {("md-cg", 0), ("md-cg", 1)}
    assert set(chosen(cli, several, "set.lam<0.5")) == {("md-cg", 0), ("md-cg", 1)}
    assert set(chosen(cli, several, "set.lam!=0.4", "seed=1")) == {("naive", 1), ("er-ace", 1)}
    assert chosen(cli, several, "scenario=c10-5") == []
    assert len(chosen(cli, several, "finished>2020-01-01")) == 6
    accuracy = {(run.spec.method, run.spec.seed): run.metrics["ACC"] for _, run in Store(several).records()}
    assert chosen(cli, several, "--sort", "-ACC") == sorted(accuracy, key=lambda name: -accuracy[name])
    assert chosen(cli, several, "--sort", "acc") == sorted(accuracy, key=lambda name: accuracy[name])
    assert set(chosen(cli, several, "ACC>50")) == {name for name, value in accuracy.items() if value > 50}


def test_runs_as_a_table(
    cli: Cli, several: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = cli("runs", "method=md-cg", "--out", several)
    assert answer.code == 0
    assert answer.err == ""
    head, *lines = [line for line in answer.out.splitlines() if line.strip() and "─" not in line]
    assert head.split() == ["name", "scenario", "method", "memory", "seed", "ACC", "BWT-final", "s", "finished"]
    assert len(lines) == 2  # a line for each, not cut though the names are long
    for line in lines:
        assert cli("show", line.split()[0], "--out", several).code == 0
    rows = list(known_rows(several).values())
    for width in (160, 80):  # in a narrow terminal names are folded, not dropped
        with monkeypatch.context() as patch:
            wide = partial(Console, width=width, force_terminal=True, color_system=None)
            patch.setattr("mdcg.cli.runs.PlainConsole", wide)
            capsys.readouterr()
            _print(rows, [])
        text = capsys.readouterr().out
        assert ("scenario" in text) == (width == 160)
        letters = "".join(line[:36].strip() for line in text.splitlines())
        assert all(row["name"][:18] in letters for row in rows)
        assert "…" not in text
    assert "none of the 6 runs" in cli("runs", "seed=9", "--out", several).out


def test_every_setting_has_a_name_that_can_be_asked_for(several: Path) -> None:
    for _, record in Store(several).records():
        assert {name for name in record.spec.settings() if not name.startswith("set.")} == SETTINGS


def test_what_is_asked_about_has_a_column(cli: Cli, several: Path) -> None:
    """Also where only some methods have it; and training as usual is found by that name."""
    told = cli("runs", "augment=usual", "memory>=1", "--sort=set.lam", "--out", several).out
    head, *lines = [line.split() for line in told.splitlines() if line.strip() and "─" not in line]
    usual = ["name", "scenario", "method", "memory", "seed", "ACC", "BWT-final", "s", "finished"]
    assert head == [*usual[:5], "augment", "set.lam", *usual[5:]]
    rows = [row for row in known_rows(several).values() if row["memory"]]
    assert {line[5] for line in lines} == {"usual"}
    expected = {(row["name"], f"{row['set.lam']:.4g}" if "set.lam" in row else "–") for row in rows}
    assert {(line[0], line[6]) for line in lines} == expected
    assert len({lam for _, lam in expected}) > 1


def test_a_terminal_with_hardly_any_room_shows_whole_lines(
    several: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = list(known_rows(several).values())
    _print(rows, ["seed"])
    lines = capsys.readouterr().out
    monkeypatch.setattr("mdcg.cli.runs.PlainConsole", partial(Console, width=40, force_terminal=True))
    _print(rows, ["seed"])
    assert capsys.readouterr().out.encode("ascii", "replace") == lines.encode("ascii", "replace")
    assert all(row["name"] in lines for row in rows)


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_a_narrow_terminal_shows_names_and_results_first(
    width: int, several: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of what was asked about as much as fits; what does not is named."""
    monkeypatch.setattr(
        "mdcg.cli.runs.PlainConsole", partial(Console, width=width, force_terminal=True, color_system=None)
    )
    rows = [{**row, "augment": "crop+flip+randaugment", "set.lam": 0.25} for row in known_rows(several).values()]
    asked = ["augment", "set.lam", "fingerprint"]
    _print(rows, asked)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines if "no room" not in line) <= width
    head = next(line.split() for line in lines if "name" in line)
    assert head[0] == "name"
    assert head[-4:] == ["ACC", "BWT-final", "s", "finished"]
    shown = [one for one in asked if one in head]
    assert ("augment" in shown) == (width > 80)
    assert ("fingerprint" in shown) == (width == 160)
    assert any("0.25" in line for line in lines) == ("set.lam" in shown)
    left = [line for line in lines if line.startswith("there is no room for")]
    assert left == [] if shown == asked else ", ".join(one for one in asked if one not in shown) in left[0]
    assert "…" not in "".join(lines)
    assert {row["name"][:20] for row in rows} <= {line[2:22] for line in lines}
    assert len([line for line in lines if re.search(r" \d\d:\d\d *$", line)]) == len(rows)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_lines_for_a_file_are_those_of_rich(encoding: str, several: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "name": f"{row['name']}{'é日' * place}"} for place, row in enumerate(known_rows(several).values())]
    rows[1]["ACC"] = None
    keys = ["name", "scenario", "memory", "ACC", "finished"]
    file = io.TextIOWrapper(io.BytesIO(), encoding, errors="replace")
    console = PlainConsole(file=file, width=1000)
    console.print(_table(rows, keys))
    console.file.flush()
    told = "".join(f"{line}\n" for line in _lines(rows, keys, box.SIMPLE_HEAD.substitute(console.options)))
    assert told.encode(encoding, "replace") == file.buffer.getvalue()
    _print([rows[0], {**rows[1], "name": "two\nlines,\ttabs\x1b[31m"}], [])
    assert capsys.readouterr().out.splitlines()[4].startswith("  two lines, tabs\ufffd[31m ")


def test_mistakes_get_one_sentence(cli: Cli, several: Path, tmp_path: Path) -> None:
    mistakes: list[tuple[list[object], str]] = [
        (["memory>=big"], "memory is a number"),
        (["mehtod=md"], "did you mean 'method'"),
        (["--sort", "AC"], "did you mean"),
        (["--export", tmp_path / "x.xlsx"], "let its name end in .csv, .parquet or .jsonl"),
        (["--export", tmp_path / "x"], "let its name end in .csv, .parquet or .jsonl"),
        (["R=3"], "unknown column 'R'"),
    ]
    for words, told in mistakes:
        assert told in cli("runs", *words, "--out", several).sentence()
    assert "there is no folder" in cli("runs", "--out", tmp_path / "nowhere").sentence()
    (tmp_path / "file.csv").mkdir()
    assert "is a folder; name a file" in cli("runs", "--out", several, "--export", tmp_path / "file.csv").sentence()
    (tmp_path / "none").mkdir()
    assert "no finished run" in cli("runs", "set.lam<3", "--out", tmp_path / "none").out


def test_what_cannot_be_read_is_counted(cli: Cli, several: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text("{")
    answer = cli("runs", "--out", tmp_path)
    assert answer.code == 0
    assert len(answer.err.splitlines()) == 1
    assert f"mdcg: 2 entries of {tmp_path} cannot be read, the first: {tmp_path / 'a' / 'result.json'} is" in answer.err
    content = json.loads(cli("runs", "--out", tmp_path, "--json").out)
    assert [Path(entry["path"]).parent.name for entry in content["unreadable"]] == ["a", "b"]


def known_rows(out: Path) -> dict[str, dict[str, Any]]:
    return {folder.name: row_of(folder.name, record) for folder, record in Store(out).records()}


def test_csv_round_trip(cli: Cli, several: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "runs.csv"
    answer = cli("runs", "--out", several, "--export", file)
    assert answer.out == f"6 of 6 runs: {file}\n"
    with file.open(newline="") as text:
        table = list(csv.DictReader(text))
    rows = known_rows(several)
    assert len(table) == 6
    assert list(table[0]) == columns(list(rows.values()))
    assert set(KINDS) < set(table[0])
    for line in table:
        row = rows[line["name"]]
        for name, text_ in line.items():
            value = row.get(name)
            if value is None:
                assert text_ == ""
            elif isinstance(value, str):
                assert text_ == value
            else:
                assert json.loads(text_) == value
    assert [path.name for path in file.parent.iterdir()] == ["runs.csv"]


def test_parquet_round_trip(cli: Cli, several: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "runs.parquet"
    assert cli("runs", "--out", several, "--export", file, "--json").code == 0
    table = parquet.read_table(file)
    rows = known_rows(several)
    assert table.column_names == columns(list(rows.values()))
    types = {field.name: str(field.type) for field in table.schema}
    assert types["seed"] == types["image_size"] == "int64"
    assert types["ACC"] == types["set.lam"] == "double"
    assert types["R"].count("list") == 2
    assert types["set.memory_batch"] == "string"  # a number in one method, a word in the other
    for line in table.to_pylist():
        row = rows[line["name"]]
        for name, value in line.items():
            wanted = row.get(name)
            assert value == (str(wanted) if name == "set.memory_batch" and wanted is not None else wanted)
    none = tmp_path / "none.parquet"
    assert cli("runs", "seed=7", "--out", several, "--export", none).code == 0
    assert parquet.read_table(none).num_rows == 0


def test_without_pyarrow(cli: Cli, several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")

    monkeypatch.setattr(extras, "importlib", SimpleNamespace(import_module=missing))
    told = cli("runs", "--out", several, "--export", tmp_path / "x.parquet").sentence()
    assert "a Parquet file needs pyarrow, which is not installed: pip install 'mdcg[parquet]'." in told
    assert cli("runs", "--out", several, "--export", tmp_path / "x.csv").code == 0
