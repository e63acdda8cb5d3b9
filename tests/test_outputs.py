"""What is there where a command is to write: who may replace it, and who may not."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

import mdcg
from mdcg import files
from mdcg.errors import MdcgError
from mdcg.execute.search import RECIPE, recipe_text
from mdcg.figures import FIGURES, style
from mdcg.figures.make import drawing, table
from mdcg.outputs import Kind, Output, csv_of, marked, of_lines
from mdcg.report.files import CSV_COLUMNS, csv_table, latex, markdown
from mdcg.report.kinds import REPORT
from mdcg.results.settings import gather
from tests import fake_runs
from tests.conftest import Cli
from tests.report.pages import page

KIND = Kind.told_by("a file of ours", lambda file: file.read() == b"ours")


def refused(output: Output, said: str) -> None:
    """Before anything is written, and when it is; what is there stays."""
    before = output.path.read_bytes() if output.path.is_file() else None
    for act in (output.check, lambda: output.write(b"new")):
        with pytest.raises(MdcgError, match=said) as error:
            act()
        assert "\n" not in str(error.value)
    assert (output.path.read_bytes() if output.path.is_file() else None) == before


def recognised(kind: Kind, content: bytes) -> bool:
    try:
        return kind.lost(io.BufferedReader(io.BytesIO(content))) == ""
    except OSError:
        raise
    except Exception:
        return False


def test_only_files_of_their_kind_give_way(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    Output(path, KIND).write(b"ours")
    Output(path, KIND).write(b"other")
    refused(Output(path, KIND), "file is there already, and is not a file of ours, or is damaged; choose another place")
    Output(path, KIND, force=True).write(b"forced")
    assert path.read_bytes() == b"forced"
    assert [file.name for file in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("mode", [0o444, 0o400, 0o000])
def test_what_is_write_protected_stays(mode: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"ours")
    (tmp_path / "file").chmod(mode)
    with pytest.raises(MdcgError, match="file is there already, and is write-protected"):
        Output(tmp_path / "file", KIND).check()
    Output(tmp_path / "file", KIND, force=True).write(b"forced")


def test_what_a_command_reads_cannot_be_forced(tmp_path: Path) -> None:
    """Under any name: in a folder, behind a link, as a second name of the same file."""
    (tmp_path / "in" / "deep").mkdir(parents=True)
    read = tmp_path / "in" / "deep" / "file"
    read.write_bytes(b"theirs")
    (tmp_path / "link").symlink_to(read)
    (tmp_path / "folder").symlink_to(tmp_path / "in")
    os.link(read, tmp_path / "second")
    for place in (read, tmp_path / "link", tmp_path / "second", tmp_path / "folder" / "deep" / "file"):
        for inputs in ([read], [tmp_path / "in"], [tmp_path / "folder"]):
            refused(
                Output(place, KIND, True, inputs), "belongs to what this very command reads, and is not a file of ours"
            )
    read.write_bytes(b"ours")  # of the same kind, and so it may be written anew
    Output(read, KIND, True, [read]).write(b"new")
    Output(tmp_path / "beside", KIND, True, [tmp_path / "in"]).write(b"new")


def test_folders_that_are_read_may_be_deep(tmp_path: Path) -> None:
    """Deeper than functions may call themselves, and than folders are walked: all of it is what the command reads."""
    place = tmp_path
    for _ in range(1100):
        place /= "d"
        place.mkdir()
    (place / "file").write_bytes(b"a picture")
    refused(Output(place / "file", KIND, True, [tmp_path]), "belongs to what this very command reads")
    beside = tmp_path.with_name("beside")
    beside.write_bytes(b"a picture")
    Output(beside, KIND, True, [tmp_path]).write(b"new")
    assert beside.read_bytes() == b"new"
    (place / "file").unlink()
    while place != tmp_path:  # or whoever tidies up calls itself too often
        place.rmdir()
        place = place.parent


def test_links(tmp_path: Path) -> None:
    """A link gives way where what it leads to would; that stays as it is."""
    target, link, chain = tmp_path / "target", tmp_path / "link", tmp_path / "chain"
    target.write_bytes(b"ours")
    link.symlink_to("target")
    chain.symlink_to(link)
    Output(chain, KIND).write(b"new")
    assert (chain.is_symlink(), chain.read_bytes(), target.read_bytes()) == (False, b"new", b"ours")
    target.write_bytes(b"theirs")
    refused(Output(link, KIND), "link is there already, and is not a file of ours")
    for place, to in ((tmp_path / "loop", "loop"), (tmp_path / "dangling", "nowhere")):
        place.symlink_to(to)
        refused(Output(place, KIND), "is a link that leads nowhere")
        Output(place, KIND, force=True).write(b"new")
    assert not (tmp_path / "nowhere").exists()


def test_the_systems_own_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links among the devices are no one's: a stand-in for /dev, which this test could otherwise harm."""
    dev = tmp_path / "dev"
    dev.mkdir()
    (dev / "stdin").symlink_to("/proc/self/fd/0")
    (dev / "stdout").symlink_to(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"ours")
    (tmp_path / "link").symlink_to(dev / "stdout")
    (tmp_path / "chain").symlink_to("link")
    (tmp_path / "fd").symlink_to("/proc/self/fd")
    monkeypatch.setattr(files, "SYSTEM", (*files.SYSTEM, dev))
    for name in ("dev/stdin", "dev/stdout", "dev/new", "link", "chain", "fd/1"):
        for force in (False, True):
            with pytest.raises(MdcgError, match="is the system's own; name a file to write elsewhere"):
                Output(tmp_path / name, KIND, force).write(b"new")
    for name in ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/1", "/sys/new"):
        with pytest.raises(MdcgError, match="is the system's own"):
            Output(Path(name), KIND, force=True).check()
    with pytest.raises(MdcgError, match="is the system's own"):
        files.write_atomic(dev / "stdin", b"new")
    assert (dev / "stdin").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"ours"
    Output(Path("/dev/shm/no such file"), KIND).check()  # where files lie


def test_pipes_devices_and_folders(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, to in (("to pipe", "pipe"), ("to folder", "folder"), ("to null", "/dev/null")):
        (tmp_path / name).symlink_to(to)
    for name in ("pipe", "folder", "to pipe", "to folder", "to null"):
        for force in (False, True):
            with pytest.raises(MdcgError, match=r"name a file to write( elsewhere)?\."):
                Output(tmp_path / name, KIND, force).check()


@pytest.mark.parametrize("name", [300 * "x", "file/x", "x\0", "\ud800"], ids=ascii)
def test_names_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    """They are told before any work is done."""
    (tmp_path / "file").touch()
    with pytest.raises(MdcgError):
        Output(tmp_path / name, KIND).check()


def test_a_file_that_somebody_puts_there_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(tmp_path / "file", KIND)
    with monkeypatch.context() as patch:
        patch.setattr(files, "_write", lambda file, content: output.path.write_bytes(b"theirs"))
        with pytest.raises(MdcgError, match="is not a file of ours"):
            output.write(b"new")
    assert output.path.read_bytes() == b"theirs"
    output.path.unlink()

    def write() -> None:
        with output.open() as file:
            file.write(b"new")
            output.path.write_bytes(b"theirs")

    with pytest.raises(MdcgError, match="is not a file of ours"):
        write()
    assert output.path.read_bytes() == b"theirs"
    assert len(list(tmp_path.iterdir())) == 1


# ---- how files are told ----


@pytest.mark.parametrize(
    ("content", "own"),
    [
        (b"a,b\n1,2\n", True), (b"a,b\n", True), (b'a,b\n"x,y",\n', True), (b"a,b\r\n1,2\r\n", False),
        (b"a,b,mine\n1,2,3\n", False), (b'a,b\n"1",2\n', False), (b"a,b\n1,2,3\n", False), (b"a,b\n1,2\n\n", False),
        (b"", False), (b"\xff\xfe", False), (b"\x89PNG", False), (b"a,b\n1,2", False),
    ],
)  # fmt: skip
def test_csv_files(content: bytes, own: bool) -> None:
    """What a spreadsheet has saved, or somebody has added to, is theirs."""
    assert recognised(Kind.told_by("", csv_of(lambda columns: columns == ["a", "b"])), content) == own


def test_texts_and_marks() -> None:
    lines = Kind.told_by("", of_lines("# ", "|\n", lambda line: line.startswith(("# ", "|"))))
    assert recognised(lines, b"# x\n|\n")
    assert not any(
        recognised(lines, content) for content in (b"", b"# x\n", b"# x\nmine\n|\n", b"|\n# x\n", b"# \xff\n")
    )
    whole = Kind.told_by("", marked(b"<a", b"a>", b"mdcg"))
    assert recognised(whole, b"<a mdcg a>")
    assert not any(recognised(whole, content) for content in (b"", b"<a", b"<a a>", b"<a mdcg a> mine", b" <a mdcg a>"))


def test_the_files_of_a_report() -> None:
    """Each is known again by its own kind and by no other, and not once somebody has added to it."""
    runs = [fake_runs.finished(fake_runs.spec(method, seed=seed)) for method in ("md-cg", "naive") for seed in (0, 1)]
    sections = gather(runs)
    texts = {
        "table.md": markdown(sections), "table.tex": latex(sections), "table.csv": csv_table(sections),
        "index.html": page(sections, "Results in runs"),
    }  # fmt: skip
    assert set(csv_table(sections).splitlines()[0].split(",")) == CSV_COLUMNS
    for name, text in texts.items():
        for other, kind in REPORT.items():
            assert recognised(kind, text.encode()) == (name == other)
        assert not recognised(REPORT[name], f"{text}mine\n".encode())
        assert not recognised(REPORT[name], text[: len(text) // 2 + 7].encode())


def test_the_files_of_a_figure() -> None:
    figure = FIGURES["forgetting"]()
    rows = figure.numbers([fake_runs.finished(fake_runs.spec())])  # type: ignore[attr-defined]
    drawn = drawing(figure, rows, "A caption.")
    for kind, content in drawn.items():
        assert recognised(style.DRAWINGS[kind], content)
        assert not recognised(style.DRAWINGS[kind], content + b"mine")
    photo = io.BytesIO()
    Image.new("RGB", (8, 8)).save(photo, "PNG")
    assert not recognised(style.DRAWINGS["png"], photo.getvalue())
    assert not recognised(style.DRAWINGS["svg"], b"<?xml version='1.0'?>\n<svg></svg>\n")
    for name in FIGURES.names():
        assert FIGURES[name].begins
    assert tuple(table(rows).splitlines()[0].split(",")[: len(figure.begins)]) == figure.begins


def test_recipes_that_a_search_wrote() -> None:
    content = recipe_text({"scenario": "digits-2", "method": "der", "set": {"alpha": 0.5}, "seeds": "0-4"})
    assert recognised(RECIPE, content)
    for other in (
        content + b"# mine\n",
        content.replace(b"der", b"'der'"),
        b"scenario: digits-2\n",
        b"",
        content[:60] + b"[",
    ):
        assert not recognised(RECIPE, other)
    assert yaml.safe_load(content)["set"] == {"alpha": 0.5}


# ---- commands ----


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    clf = mdcg.Learner("replay", memory=8, backbone="smallconv", epochs=1, quiet=True)
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    clf.learn(images, ["cat", "dog"] * 10).save(path)
    return path


def of_image(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path, "PNG")
    return path


def test_a_model_is_not_replaced_by_its_own_export(model: Path, cli: Cli) -> None:
    before = model.read_bytes()
    for to in ("onnx", "torch"):
        told = cli("export", model, "--to", to, "--out", model).sentence()
        assert "is there already, and is not a" in told
        assert told.endswith("choose another place, or replace it with --force (in Python force=True).")
        told = cli("export", model, "--to", to, "--out", model, "--force").sentence()
        assert "belongs to what this very command reads" in told
    assert model.read_bytes() == before


WRITERS: dict[str, Callable[[Path], list[object]]] = {
    "learn": lambda path: ["learn", "no such folder", "--out", path],
    "export": lambda path: ["export", "no such model", "--out", path],
    "compare": lambda path: ["compare", "--methods", "naive", "--scenario", "no-such-5", "--report", path],
    "runs": lambda path: ["runs", "--out", "no such folder", "--export", path.with_suffix(".csv")],
    "archive": lambda path: ["runs", "--out", "no such folder", "--export", path.with_suffix(".jsonl")],
    "search": lambda path: ["search", "--method", "der", "--scenario", "no-such-5", "--write", path],
    "report": lambda path: ["report", "no such folder", "--out", path.parent],
    "reproduction": lambda path: ["report", "no such folder", "--reproduction", path],
    "figure": lambda path: ["figure", "forgetting", "--scenario", "no-such-5", "--out", path.parent],
}
NAMED = {"report": "table.tex", "figure": "forgetting-no-such-5.csv", "runs": "x.csv", "archive": "x.jsonl"}


@pytest.mark.parametrize("command", WRITERS)
def test_files_are_refused_before_anything_is_read(command: str, tmp_path: Path, cli: Cli) -> None:
    """What else these commands name is not there, and would be told of as soon as it was looked for."""
    path = of_image(tmp_path / "here" / NAMED.get(command, "x"))
    before = path.read_bytes()
    said = "is no text" if command == "reproduction" else "is there already, and is not "
    assert f"{path} {said}" in cli(*WRITERS[command](path)).sentence()
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_an_image_is_not_replaced_by_what_is_learned_of_it(tmp_path: Path, cli: Cli) -> None:
    image, before = of_image(tmp_path / "images" / "cat" / "0.png"), b""
    of_image(tmp_path / "images" / "dog" / "0.png")
    before = image.read_bytes()
    assert "belongs to what this very" in cli("learn", tmp_path / "images", "--out", image, "--force").sentence()
    assert image.read_bytes() == before


def test_in_python(model: Path, tmp_path: Path) -> None:
    """`save`, `learn(save_to=)` and `export` follow the same rule; before anything is learned."""
    clf, path = mdcg.Learner.load(model), of_image(tmp_path / "x")
    for act in (
        lambda: clf.save(path),
        lambda: clf.learn("no such folder", save_to=path),
        lambda: clf.export(path),
        lambda: clf.export(path, "torch"),
    ):
        with pytest.raises(MdcgError, match="x is there already, and is not a"):
            act()
    clf.save(path, force=True)
    clf.save(path)  # over the same classes
    images = np.zeros((8, 8, 8, 3), np.uint8)
    other = mdcg.Learner("naive", backbone="smallconv", epochs=1, quiet=True).learn(images, ["emu", "fox"] * 4)
    with pytest.raises(MdcgError, match="is a model of 2 classes, and the new one would not know 'cat'; let that one"):
        other.save(path)
    assert mdcg.Learner.load(path).classes_.tolist() == ["cat", "dog"]
    other.save(path, force=True)
    assert mdcg.Learner.load(path).classes_.tolist() == ["emu", "fox"]


def test_classes_that_would_be_lost_are_told_before_images_are_read(model: Path, tmp_path: Path) -> None:
    for name in ("emu", "fox"):
        of_image(tmp_path / name / "0.png").write_bytes(b"no image")
    clf = mdcg.Learner(quiet=True)
    with pytest.raises(MdcgError, match="would not know 'cat'"):
        clf.learn(tmp_path, save_to=model)
