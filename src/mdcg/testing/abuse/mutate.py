"""The kinds of files that mdcg reads back, each damaged in many ways.

One bad file costs what it holds and a sentence, never a command that is about others too, and nothing that is damaged
passes for whole where that can be told.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import re
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from mdcg.data.cache import cache_file, cached, write_cache
from mdcg.data.content import arrays, digest_of
from mdcg.errors import MdcgError
from mdcg.learner import Learner
from mdcg.learner.tables import as_html, described, info_panel
from mdcg.methods import METHODS
from mdcg.models import HEADS
from mdcg.runs.archive import write_archive
from mdcg.runs.store import RESULT, Store
from mdcg.tensors import HEADER
from mdcg.terminal import PlainConsole
from mdcg.testing.abuse.campaign import Failure, Part
from mdcg.testing.abuse.damage import Edit, Edited, read_damaged
from mdcg.testing.groups import CPU, toy_dataset, toy_group
from mdcg.train import state as states
from mdcg.train.checkpoint import Checkpoints
from mdcg.train.loop import Trainer

RECIPE = "{scenario: digits-2, epochs: 1, batch_size: 21, memory: 20, seeds: 0-2, axes: {method: [naive, replay]}}"
NEWER = "newer version of mdcg"  # what only a later version can read is no damage


@dataclass(frozen=True)
class Kind:
    """A kind of file: one of its own, and what reads it."""

    file: Edited
    read: Callable[[bytes], object]


def _result(folder: Path) -> Kind:
    runs = _some_runs(folder)
    path = next(runs.glob("*replay*")) / RESULT
    return Kind(Edited(path.read_bytes(), "json"), lambda content: _look(content, path, runs))


def _archive(folder: Path) -> Kind:
    runs = _some_runs(folder)
    path = folder / "archives" / "some.jsonl"
    write_archive(path, [record for _, record in Store(runs).records()])
    other = next(runs.glob("*naive*"))
    shutil.copytree(other, path.parent / other.name)  # a report of nothing at all is none
    return Kind(Edited(path.read_bytes(), "lines"), lambda content: _look(content, path, path.parent))


def _measured(folder: Path) -> Kind:
    runs, out = folder / "runs", folder / "figures"
    words = ["figure", "drift", "--scenario", "digits-2", "--epochs", "1", "--runs", runs, "--out", out, "--memory", 20]
    _command(*words)
    path = next(runs.glob("*md-cg*/measured/drift.json"))

    def read(content: bytes) -> None:
        path.write_bytes(content)
        code, said = _command(*words)
        _expect(code in (0, 2), said)  # the figure is about this file
        _expect(_command("report", runs, "--out", folder / "report")[0] == 0, "the report is about all runs")

    return Kind(Edited(path.read_bytes(), "json"), read)


def _note(name: str, content: Mapping[str, object]) -> Callable[[Path], Kind]:
    def make(folder: Path) -> Kind:
        runs = _some_runs(folder)
        run = next(runs.glob("*naive*"))
        (run / RESULT).unlink()
        path = run / name if name == "failed.json" else runs / ".groups" / "0123456789abcdef" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        told = json.dumps({**content, **({"members": [run.name]} if "members" in content else {})}).encode()
        return Kind(Edited(told, "json"), lambda content: _plan(content, path, runs))

    return make


def _cache(folder: Path) -> Kind:
    given = toy_dataset([6, 5, 4])
    whole = arrays(
        (given.train.images.numpy(), given.train.labels), (given.test.images.numpy(), given.test.labels), "abc"
    )
    file = cache_file("toy", folder, "stamp")
    write_cache(file, whole)

    def read(content: bytes) -> None:
        file.write_bytes(content)
        found = cached("toy", folder, "stamp", lambda path: write_cache(path, whole))
        same = all(torch.equal(one, found.tensors()[name]) for name, one in whole.tensors().items())
        about = (found.class_names, found.mean, found.std, found.digest)
        _expect(same and about == (whole.class_names, whole.mean, whole.std, digest_of(whole)), "damage was not seen")

    return Kind(Edited(file.read_bytes(), "safetensors"), read)


def _checkpoint(folder: Path) -> Kind:
    group = toy_group(toy_dataset([12, 11, 10, 9]), "der", [(0, 8, {}), (1, 9, {})], tasks=2, epochs=2)
    kept: list[bytes] = []

    def save(*parts: object) -> None:
        Checkpoints(folder).save(*parts)  # type: ignore[arg-type]
        kept.append(max(folder.glob("*.safetensors")).read_bytes())

    trainer = Trainer(group, CPU, save)
    trainer._save_again = 0.0
    state = states.fresh(group, CPU)
    state.forked = True
    trainer.train(state, tasks=1)
    trainer.begin_task(state)
    save(*states.dump(state))

    def read(content: bytes) -> None:
        for old in folder.glob("*.safetensors"):
            old.unlink()
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        (folder / f"00000001-00000000-00000000.{digest}.safetensors").write_bytes(content)
        found = Checkpoints(folder).restore(lambda values: group, CPU)
        if found is not None:
            Trainer(group, CPU).train(found)
            states.dump(found)
            _expect(found.task == len(group.sizes) or bool(found.failures(group)), "it did not train to its end")

    return Kind(Edited(kept[-1], "safetensors"), read)


def _model(folder: Path) -> Kind:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8), np.repeat(["a", "b", "c", "d"], 10)
    clf = Learner("der", memory=20, backbone="smallconv", epochs=1, quiet=True, device="cpu", most_classes=6)
    path, trap = folder / "model.safetensors", folder / "trap.safetensors"
    clf.learn(images[:20], labels[:20]).save(path)
    trap.write_bytes(path.read_bytes())
    opened = _opened(trap)

    def read(content: bytes) -> None:
        path.write_bytes(content)
        opened.clear()
        with _told_of(path):
            found = Learner.load(path)
        _print(found, path)
        found.set_params(quiet=True, device="cpu", epochs=1)
        as_html(found.saved_)
        _expect(repr(found).isprintable(), repr(found))
        if found.saved_.setup.shape == (1, 8, 8):
            found.predict_proba(images)
            found.learn(images[20:], labels[20:])
            found.save(folder / "next.safetensors")
            Learner.load(folder / "next.safetensors")
        _expect(not opened, "a file was opened because the model names it")

    return Kind(Edited(path.read_bytes(), "safetensors", _lies(str(trap))), read)


def _lies(trap: str) -> tuple[tuple[Edit, ...], ...]:
    """What a hostile hand would write into a model's header: claims that cost time or memory, paths, escapes."""

    def lie(**values: object) -> tuple[Edit, ...]:
        places = ([int(key) if key.isdigit() else key for key in name.split("__")] for name in values)
        return tuple(
            Edit(("__metadata__", HEADER, *place), value) for place, value in zip(places, values.values(), strict=True)
        )

    def tasks(count: int, each: int = 1) -> dict[str, object]:
        names = [str(number) for number in range(count * each)]
        return {"sizes": count * [each], "classes": names, "versions": []}

    heads = [lie(head=name, head_settings={}, **tasks(count)) for name in HEADS.names() for count in (2, 3000, 100_000)]
    sizes = [lie(**tasks(*shape)) for shape in ((3, 2), (1, 6), (1, 7), (2, 50_000), (1000, 1000))]
    shapes = [[1, 8192, 8192], [1, 8192, 8193], [2**26, 1, 1], [1, 1, 1], [3, 8, 8], [10**9] * 3]
    many = [lie(shape=shape, mean=shape[0] * [0.5], std=shape[0] * [0.5]) for shape in shapes if shape[0] < 10**6]
    sizes += [*many, *(lie(shape=shape) for shape in shapes), lie(outputs=10**9), lie(tasks=10**9), lie(memory=2**53)]
    sizes += [lie(backbone=name) for name in ("resnet18", "resnet18-1000", "resnet56", "os:system", "../x", trap)]
    paths = [lie(params__weights=trap, method=name, params__method=name) for name in METHODS.names()]
    paths += [lie(params__weights=path) for path in (trap, "//host/share/x", "~/x", 3, [trap])]
    paths += [lie(**{f"params__{name}": trap}) for name in ("backbone", "set", "normalise", "device", "head", "resize")]
    odd = "\x1b]0;x\x07\x1b[31m\nmdcg: all is well.\t\x9b\u202e"
    texts = [lie(classes=[odd, f"{odd}2"]), lie(classes=["a", "a"]), lie(method=odd), lie(hyperparameters={odd: odd})]
    texts += [lie(**{name: odd}) for name in ("backbone", "head", "params__method", "params__head", "params__resize")]
    texts += [lie(versions__0__mdcg=odd, versions__0__finished=odd), lie(params={odd: odd}), lie(**{odd: odd})]
    texts += [lie(params__set={odd: odd}), lie(head_settings={odd: 1.0}), lie(versions__0__classes=[odd, odd])]
    return (*heads, *sizes, *paths, *texts)


def _opened(trap: Path) -> list[str]:
    """A list of how often this file has been opened since, by whatever name."""
    found: list[str] = []

    def note(event: str, given: tuple[object, ...]) -> None:
        if event == "open" and isinstance(given[0], str | bytes | os.PathLike):
            name = os.fsdecode(given[0])
            if name.endswith(trap.name) or "share" in name:
                found.append(name)

    sys.addaudithook(note)
    return found


@contextlib.contextmanager
def _told_of(path: Path) -> Iterator[None]:
    """Expect of whatever is refused a sentence about this file, with no internals and with something to do."""
    try:
        yield
    except MdcgError as error:
        said = str(error)
        _expect(path.name in said and said.isprintable() and said.endswith("."), f"it says {said!r}")
        _expect(not re.search(r"validation error|argument|Error\(s\)|state_dict|<", said), f"it says {said!r}")
        raise


def _print(found: Learner, path: Path) -> None:
    """Print all that `mdcg info` does, which nothing in a file may turn into commands to the terminal."""
    console = PlainConsole(file=io.StringIO(), width=200)
    console.print(info_panel(found.saved_, path))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    odd = sorted({ascii(letter) for letter in said if letter != "\n" and not letter.isprintable()})
    _expect(not odd and "\nmdcg: all is well" not in said, f"it prints {', '.join(odd)}")
    json.dumps(described(found.saved_, path), allow_nan=False)


KINDS: Mapping[str, Callable[[Path], Kind]] = {
    "result": _result,
    "archive": _archive,
    "measured": _measured,
    "group": _note("members.json", {"members": [], "probes": []}),
    "failure": _note("failed.json", {"reason": "it failed", "details": "", "when": "2026-01-01T00:00:00+00:00"}),
    "cache": _cache,
    "checkpoint": _checkpoint,
    "model": _model,
}


class Mutate(Part):
    """Files of every kind that is read back, damaged: a sentence, and no command about others is lost."""

    name, usual = "mutate", 3000

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._kinds: dict[str, Kind] = {}

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        name = list(KINDS)[number % len(KINDS)]
        kind = self._kinds.get(name) or self._made(name)
        found = read_damaged(kind.file, kind.read, rng)
        return found and replace(found, how=f"{name}, {found.how}")

    def _made(self, name: str) -> Kind:
        place = self.folder / name
        place.mkdir()
        (place / "recipe.yaml").write_text(RECIPE)
        self._kinds[name] = KINDS[name](place)
        return self._kinds[name]


def _some_runs(folder: Path) -> Path:
    """A few finished runs in a folder."""
    asked = ["--scenario", "digits-2", "--memory", 20, "--epochs", 1, "--batch-size", 21, "--seeds", "0-1"]
    _command("compare", "--methods", "naive,replay", *asked, "--out", folder / "runs")
    return folder / "runs"


def _look(content: bytes, path: Path, runs: Path) -> None:
    """Give the commands that are about all runs of a folder, and the one about this file's."""
    path.write_bytes(content)
    for words in (
        ["runs", "--out", runs],
        ["runs", "--out", runs, "--json"],
        ["runs", "--out", runs, "--export", runs.parent / "all.csv"],
        ["sweep", runs.parent / "recipe.yaml", "--out", runs, "--plan"],
        ["report", runs, "--out", runs.parent / "report"],
    ):
        if words[0] == "report" and sum(content) % 2:
            continue  # it takes longer than all others together
        code, said = _command(*words)
        _expect(code == 0 or NEWER in said, f"'mdcg {words[0]}' ended with code {code}: {said}")
        _expect("Warning:" not in said, said)
    if path.name == RESULT:
        code, said = _command("show", path.parent.name, "--out", runs)
        _expect(code in (0, 2), said)


def _plan(content: bytes, path: Path, runs: Path) -> None:
    path.write_bytes(content)
    code, said = _command("sweep", runs.parent / "recipe.yaml", "--out", runs, "--plan")
    _expect(code == 0, f"'mdcg sweep --plan' ended with code {code}: {said}")


def _expect(so: bool, otherwise: str) -> None:
    if not so:
        raise AssertionError(otherwise)


def _command(*words: object) -> tuple[int, str]:
    """Give a command as a shell would: its exit code, and what it said of its troubles."""
    before, errors = sys.argv, io.StringIO()
    sys.argv = ["mdcg", *map(str, words)]
    try:
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")), contextlib.redirect_stderr(errors):
            runpy.run_module("mdcg", run_name="__main__")
        return 0, errors.getvalue()
    except SystemExit as leave:
        return int(leave.code or 0), errors.getvalue()
    finally:
        sys.argv = before
