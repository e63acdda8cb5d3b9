"""Recipes: which runs their axes mean, and one sentence with a line for every mistake in them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

import mdcg
from mdcg import paper
from mdcg.methods.base import METHODS
from mdcg.recipes.document import read_document, shipped_recipes
from mdcg.recipes.grid import choose, expand
from mdcg.recipes.recipe import Recipe
from mdcg.runs.spec import RunSpec
from mdcg.runs.store import Store
from mdcg.scenario import parse
from tests.conftest import RECIPE, Cli, toy_dataset


def keys(path: Path, **given: object) -> list[tuple[object, ...]]:
    found = [combination.recipe for combination in expand(read_document(path), given)]
    return [(one.method, one.memory, one.head, one.set, one.seeds) for one in found]


def test_every_combination(recipe: Path) -> None:
    seeds = [0, 1, 2]
    assert keys(recipe) == [(m, [size], None, {}, seeds) for m in ("replay", "md-cg") for size in (30, 60)]
    assert {one[-1] == [4] for one in keys(recipe, seeds="4")} == {True}
    recipe.write_text(
        "scenario: digits-2\nset: {gamma: 2}\naxes:\n  set.lam: [0.1, 1]\n  which:\n"
        "    plain: {method: md-cg, memory: 20}\n"
        "    single: {method: md-cg, head: single-gate, memory: 30, set: {beta: 5}}\n"
    )
    assert [(one[0], one[1], one[2], one[3]) for one in keys(recipe)] == [
        ("md-cg", [20], None, {"gamma": 2, "lam": lam}) if which == "plain" else
        ("md-cg", [30], "single-gate", {"gamma": 2, "lam": lam, "beta": 5})
        for lam in (0.1, 1) for which in ("plain", "single")
    ]  # fmt: skip
    # What a method does not have is left out for it, where another one has it.
    recipe.write_text("scenario: digits-2\nmemory: 20\naxes:\n  method: [md, replay]\n  set.lam: [0.1, 1]\n")
    assert [(one[0], one[3]) for one in keys(recipe)] == [
        ("md", {"lam": 0.1}), ("md", {"lam": 1}), ("replay", {}), ("replay", {})
    ]  # fmt: skip
    assert [cell.labels for cell in mdcg.Sweep.read(recipe, out=recipe.parent).cells] == [
        {"method": "md", "set.lam": "0.1"}, {"method": "md", "set.lam": "1"}, {"method": "replay"}
    ]  # fmt: skip
    recipe.write_text("scenario: digits-2\nmemory: 20,40\nmethod: replay\n")
    assert [one[1] for one in keys(recipe)] == [[20], [40]]
    # Older recipes have `rate` for the learning rate.
    recipe.write_text("scenario: digits-2\nmethod: naive\nrate: 0.2\naxes:\n  momentum: [0.1]\n")
    assert [one.recipe.lr for one in expand(read_document(recipe))] == [0.2]
    recipe.write_text("scenario: digits-2\nmethod: naive\naxes:\n  rate: [0.1]\n  w:\n    a: {epochs: 1}\n")
    assert [one.recipe.lr for one in expand(read_document(recipe))] == [0.1]
    # Lists beside the axes are axes too.
    recipe.write_text("scenario: digits-2\nmethods: [replay, md]\nmemory: [20, 30]\nset: {}\n")
    assert [(one[0], one[1]) for one in keys(recipe)] == [(m, [s]) for m in ("replay", "md") for s in (20, 30)]


def test_a_preset_for_all_of_a_recipe(recipe: Path, tmp_path: Path) -> None:
    """`sweep RECIPE --preset published`: the same cells, as the published code."""
    paper, published = (mdcg.Sweep.read(recipe, out=tmp_path, preset=name) for name in ("paper", "published"))
    heads = [{spec.head for cell in work.cells for spec in cell.specs} for work in (paper, published)]
    assert heads == [{"incremental", "cascaded-gates"}, {"incremental", "cascaded-gates-with-own"}]
    assert [cell.labels for cell in paper.cells] == [cell.labels for cell in published.cells]


def test_labels_are_text(recipe: Path, tmp_path: Path) -> None:
    """Whatever YAML would make of them: on and yes are not both True."""
    recipe.write_text(
        "scenario: digits-2\naxes:\n  w:\n    on: {method: naive}\n    yes: {method: cumulative}\n"
        "    1: {method: replay, memory: 30}\n    1.0: {method: replay, memory: 40}\n"
    )
    labels = [cell.labels["w"] for cell in mdcg.Sweep.read(recipe, out=tmp_path / "runs").cells]
    assert labels == ["on", "yes", "1", "1.0"]
    recipe.write_text(RECIPE + "  precision: [fp32, fp64]\n")
    with pytest.raises(mdcg.MdcgError, match="'precision' is an axis"):
        mdcg.Sweep.read(recipe, out=tmp_path / "runs", precision="fp64")


def test_what_is_not_wanted_need_not_be_there(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text("method: naive\naxes:\n  scenario: [digits-2, c10-5]\n")
    here: dict[str, Any] = {"out": tmp_path / "runs", "data": tmp_path}
    assert len(mdcg.Sweep.read(recipe, only={"scenario": ["digits-2"]}, **here).cells) == 1
    with pytest.raises(mdcg.MdcgError, match="cifar10"):
        mdcg.Sweep.read(recipe, **here)


def test_a_method_without_memory_runs_once(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(RECIPE.replace("[replay, md-cg]", "[naive, replay]"))
    work = mdcg.Sweep.read(recipe, out=tmp_path / "runs")
    assert [(cell.specs[0].method, cell.specs[0].memory, len(cell.specs)) for cell in work.cells] == [
        ("naive", 0, 3), ("replay", 30, 3), ("replay", 60, 3)
    ]  # fmt: skip


def test_only_some(recipe: Path, tmp_path: Path) -> None:
    def left(**wanted: list[str]) -> list[tuple[str, int, int]]:
        cells = mdcg.Sweep.read(recipe, out=tmp_path / "runs", only=wanted).cells
        return [(cell.specs[0].method, cell.specs[0].memory, len(cell.specs)) for cell in cells]

    assert left(method=["md-cg"]) == [("md-cg", 30, 3), ("md-cg", 60, 3)]
    assert left(memory=["60"], method=["md-cg", "replay"]) == [("replay", 60, 3), ("md-cg", 60, 3)]
    assert left(memory=["60"], seed=["1", "2"], method=["replay"]) == [("replay", 60, 2)]
    recipe.write_text(RECIPE.replace("[replay, md-cg]", "[naive, replay]"))
    # A method without a memory is the same for every size.
    assert left(memory=["30"]) == [("naive", 0, 3), ("replay", 30, 3)]
    assert left(memory=["60"]) == [("naive", 0, 3), ("replay", 60, 3)]
    assert left(memory=["30"], method=["naive"]) == [("naive", 0, 3)]
    recipe.write_text(RECIPE)
    with pytest.raises(mdcg.MdcgError, match="unknown axis or setting 'memroy'; did you mean 'memory'"):
        left(memroy=["60"])
    with pytest.raises(mdcg.MdcgError, match=r"unknown axis or setting 'set\.lamb'; did you mean 'set\.lam'"):
        left(**{"set.lamb": ["1"]})
    with pytest.raises(mdcg.MdcgError, match="unknown value of method in this recipe 'md-gc'; did you mean 'md-cg'"):
        left(method=["md-gc"])


def test_an_axis_or_value_that_there_is_not_is_refused_before_a_dataset_is_asked_for() -> None:
    def load(_: Recipe) -> mdcg.Dataset:
        raise AssertionError("a dataset is asked for")

    combinations = expand(read_document(shipped_recipes()["gates"]))
    for key, value, said in (
        ("gaets", "none", "unknown axis or setting 'gaets'; did you mean 'gates'"),
        ("batch-size", "8", "unknown axis or setting 'batch-size'; did you mean 'batch_size'"),
        ("set.capp", "2", "unknown axis or setting 'set.capp'; did you mean 'set.cap'"),
        ("gates", "opne", "unknown value of gates in this recipe 'opne'; did you mean 'open'"),
    ):
        with pytest.raises(mdcg.MdcgError, match=re.escape(said)):
            choose(combinations, load, {key: [value]})


@pytest.mark.parametrize("path", shipped_recipes().values(), ids=lambda path: path.stem)
def test_our_recipes(path: Path) -> None:
    """Each table's recipe means the table's cells, and the paper's hyperparameters for each."""
    found = expand(read_document(path))
    content = yaml.safe_load(path.read_text())
    held_out = {one.recipe.hold_out for one in found}
    searches = ("beyond-search", "beyond-margin", "beyond-decay", "beyond-tym-10")
    assert held_out == {0.1 if path.stem in searches else 0.0}
    seeds = [0, 1, 2] if path.stem in ("quick", "stream-digits") else [0] if held_out == {0.1} else [0, 1, 2, 3, 4]
    assert all(one.recipe.seeds == seeds for one in found)
    if not path.stem.startswith("table"):
        return
    table, scenario = int(path.stem[5]), content["scenario"]
    parse(scenario)
    printed = {(c.method, c.head, c.memory) for c in paper.cells() if (c.table, c.scenario) == (table, scenario)}
    meant = set()
    for one in found:
        method = one.recipe.method or ""
        (memory,) = one.recipe.memory
        meant.add((method, one.recipe.head or "", memory if METHODS[method].uses_memory else 0))
    assert printed == meant - {("gem", "", 2000)} if scenario == "c100-10" else printed == meant


BAD = [
    ("scenario: digits-2\nmethd: naive\n",
     "line 2: unknown setting 'methd'; did you mean 'method'"),
    ("scenario: digits-2\naxes:\n  methd: [naive]\n",
     "line 3: unknown axis 'methd'; did you mean 'method'"),
    ("scenario: digits-2\nmethod: naive\naxes:\n  memory: []\n",
     "line 4: 'memory' is empty"),
    ("scenario: digits-2\nmethod: naive\naxes:\n  memory:\n",
     "line 4: 'memory' is empty"),
    ("scenario: digits-2\nmethod: md\naxes:\n  memory: [30, many]\n",
     "line 4: 'memory' is wrong"),
    ("scenario: digits-2\nmethod: md\naxes:\n  memory:\n    - 30\n    - many\n",
     "line 6: 'memory' is wrong"),
    ("scenario: digits-2\nmethod: md\naxes:\n  memory: 30\n",
     "line 4: axis 'memory' must be a list of values"),
    ("scenario: digits-2\nmethod: md\naxes:\n  memory: 0\n",
     "line 4: axis 'memory' must be a list of values, for instance [0]"),
    ("scenario: digits-2\nmethod: md\nmemory: 20\naxes:\n  set.lam: 0.0\n",
     "line 5: axis 'set.lam' must be a list of values, for instance [0.0]"),
    ("scenario: digits-2\nmemory: 30\naxes:\n  method: [naive, replay]\n  set.lam: [1]\n",
     "line 5: unknown setting of naive, replay 'lam'"),
    ("scenario: digits-2\nmemory: 30\naxes:\n  w:\n    a: {method: md}\n    b: {method: naive, set: {lam: 1}}\n",
     "line 6: unknown setting of naive 'lam'"),
    ("scenario: digits-2\nmemory: 30\nmethod: md\naxes:\n  set.lamb: [1]\n",
     "line 5: unknown setting of md 'lamb'; did you mean 'lam'"),
    ("scenario: digits-2\nmemory: 30\nmethod: md\naxes:\n  set.lam: [1, -1]\n",
     "line 5: method md: 'lam' is wrong"),
    ("scenario: digits-2\nmethod: naive\naxes:\n  method: [replay]\n",
     "line 4: axis 'method' sets 'method', which"),
    ("scenario: digits-2\nmemory: 9\naxes:\n  method: [md]\n  memory: [30]\n",
     "line 5: axis 'memory' sets 'memory', which"),
    ("scenario: digits-2\naxes:\n  method: [md]\n  memory: [30]\n  which:\n    a: {rate: 1}\n    b: {method: md}\n",
     "line 7: axis 'which' sets 'method', which line 3"),
    ("scenario: digits-2\naxes:\n  method: [md]\n  method: [replay]\n",
     "line 4: 'method' is given twice, also in line 3"),
    ("scenario: digits-2\nscenario: digits-5\n",
     "line 2: 'scenario' is given twice, also in line 1"),
    ("scenario: digits-2\naxes:\n  method: [naive, naive]\n",
     "line 3: 'method' has the value naive twice"),
    ("scenario: digits-2\naxes:\n  method: [naive, replya]\n",
     "line 3: unknown method 'replya'; did you mean 'replay'"),
    ("scenario: digits-2\naxes:\n  which:\n    a: {methd: md}\n",
     "line 4: unknown key 'methd'; did you mean 'method'"),
    ("scenario: digits-2\naxes:\n  which:\n    a: md\n",
     "line 4: 'a' must say what it sets"),
    ("scenario: digits-2\naxes:\n  which:\n    a: {method: naive, out: x}\n",
     "line 4: unknown key 'out'"),
    ("scenario: digits-2\naxes:\n  method:\n    a: {method: md}\n",
     "line 4: 'method' is given twice for 'a'"),
    ("scenario: digits-2\nmethod: md\naxes:\n  memory:\n    30: {lr: 0.1}\n    many: {lr: 0.1}\n",
     "line 6: 'memory' is wrong"),
    ("scenario: digits-2\nmethod: md\nmemory: 30\naxes:\n  memory:\n    30: {lr: 0.1}\n",
     "line 6: axis 'memory' sets 'memory', which line 3 sets too"),
    ("scenario: digits-2\naxes:\n  seeds: [1, 2]\n",
     "line 3: 'seeds' cannot be an axis"),
    ("scenario: digits-2\naxes: [method]\n",
     "line 2: 'axes' must be"),
    ("scenario: digits-2\nmethod: naive\nset: 3\naxes:\n  rate: [0.1]\n",
     "line 3: 'set' must be"),
    ("scenario: digits-20\naxes:\n  method: [naive]\n",
     "line 1: 10 classes cannot make 20 tasks"),
    ("scenario: digits\naxes:\n  method: [naive]\n",
     "line 1: 'digits' is not a scenario"),
    ("scenario: digits-2\naxes:\n  method: [md]\n",
     "line 3: md needs a memory"),
    ("scenario: digits-2\naxes:\n  method: [md]\n  memory: [30, 5]\n",
     "line 4: a memory of 5 cannot hold one image"),
    ("scenario: digits-2\nmemory: 30\naxes:\n  method: [md]\n  head: [incremental, fixed]\n",
     "line 5: md needs a head"),
    ("scenario: digits-2\nseeds: x\naxes:\n  method: [naive]\n",
     "line 2: 'x' is not a list of seeds"),
    ("scenario: &a digits-2\naxes: &b\n  method: *b\n",
     "contains itself"),
    ("scenario: digits-2\naxes:\n  method: [naive]\n  rate: [0.1, [0.2]]\n",
     "line 4: a value of 'rate' must be"),
    ("scenario: digits-2\nmethods: [naive]\naxes:\n  method: [replay]\n",
     "line 4: axis 'method' sets 'method', which line 2"),
    ("scenario: digits-2\nmethod: naive\nmethods: [naive, replay]\n", "line 3: 'method' is given too, in line 2"),
    ("scenario: digits-2\nmemory: 40\naxes:\n  w:\n    a: {method: md, set: {lam: [0.1, 1]}}\n",
     "line 5: 'set.lam' has several values here"),
    ("scenario: digits-2\nmethod: md\nmemory: [[30, 40], [50]]\n", "line 3: a value of 'memory' must be"),
    ("scenario: digits-2\nmethod: naive\ntitle: [a, b]\n", "line 3: 'title' is wrong"),
    ("scenario: digits-2\nmethod: naive\nset: []\n", "line 3: 'set' must be"),
    ("scenario: digits-2\nmethod: naive\naxes: false\n", "line 3: 'axes' must be"),
    ("scenario: digits-2\nset.lam: 0.7\nmethod: md\nmemory: 30\n", "line 2: 'set.lam' belongs under set"),
    ("scenario: digits-2\naxes:\n  w:\n    a: {method: naive, batch-size: 8, batch_size: 16}\n",
     "line 4: 'batch_size' is given twice for 'a'"),
    ("scenario: digits-2\naxes:\n  w:\n    1: {method: naive}\n    2:\n      methd: naive\n",
     "line 6: unknown key 'methd'"),
    ("scenario: digits-2\nmethod: naive\ndata: \"a\\0b\"\n", "line 3: 'data' is wrong"),
    ("method: naive\naxes:\n  memory: [3]\n",
     "no scenario was named"),
    ("axes:\n",
     "no scenario was named"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "told"), BAD, ids=[told for _, told in BAD])
def test_bad_recipes(cli: Cli, tmp_path: Path, text: str, told: str) -> None:
    recipe = tmp_path / "bad.yaml"
    recipe.write_text(text)
    sentence = cli("sweep", recipe, "--out", tmp_path / "runs").sentence()
    assert told in sentence
    assert str(recipe) in sentence
    assert not (tmp_path / "runs").exists()


def test_recipes_that_come_along(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, from any folder; a file of that name comes first."""
    monkeypatch.chdir(tmp_path)
    assert read_document("quick").content["scenario"] == "digits-5"
    listed = cli("list", "recipes").out
    assert all(name in listed for name in shipped_recipes())
    assert "A first look on handwritten digits" in listed
    (tmp_path / "quick").mkdir()
    assert read_document("quick").content["scenario"] == "digits-5"
    (tmp_path / "quick").rmdir()
    (tmp_path / "quick").write_text("scenario: digits-2\n")
    assert read_document("quick").content["scenario"] == "digits-2"
    for asked, said in {
        "quik": "unknown recipe 'quik'; did you mean 'quick'?",
        "recipes/table1-c10-5.yaml": "there is no file recipes/table1-c10-5.yaml; for the recipe that comes with mdcg",
        "mine.yaml": "cannot read recipe mine.yaml: No such file",
        "my/own": "cannot read recipe my/own: No such file",
    }.items():
        assert said in cli("sweep", asked).sentence()


def test_values_of_a_key_that_set_more(tmp_path: Path) -> None:
    """They are values of the key, and so columns of a table or lines of a chart as they would be in a list."""
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "scenario: digits-2\nmethod: md\naxes:\n  memory:\n    30: {lr: 0.1}\n    60: {lr: 0.2, set: {lam: 1.0}}\n"
    )
    found = expand(read_document(recipe))
    assert [(one.recipe.memory, one.recipe.lr, one.recipe.set) for one in found] == [
        ([30], 0.1, {}),
        ([60], 0.2, {"lam": 1.0}),
    ]
    assert [one.labels for one in found] == [{"memory": "30"}, {"memory": "60"}]


def test_any_key_can_set_more(tmp_path: Path) -> None:
    """Settings of a method too; numbers stay numbers; and a value may set nothing else."""
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "scenario: digits-2\nmethod: md\nmemory: 30\naxes:\n"
        "  set.lam:\n    0.1: {lr: 0.1}\n    1: {lr: 0.2}\n  batch-size:\n    16: {}\n"
    )
    found = [one.recipe for one in expand(read_document(recipe))]
    assert [(one.set, one.lr, one.batch_size) for one in found] == [({"lam": 0.1}, 0.1, 16), ({"lam": 1}, 0.2, 16)]


def test_what_a_table_could_not_tell_apart(cli: Cli, tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "scenario: digits-2\naxes:\n  method: [md, naive]\n  memory:\n    30: {lr: 0.1}\n    60: {lr: 0.2}\n"
    )
    told = cli("sweep", recipe, "--plan", "--out", tmp_path).sentence()
    assert "line 6: naive has no memory to tell its settings apart; leave it out." in told


ROOT = Path(__file__).parents[2]


def test_the_search_is_what_was_searched() -> None:
    """Whatever md-replay's defaults become: the runs that are kept are those that recipes mean, but for some λ."""
    dataset = toy_dataset([4] * 10, side=32, channels=3)
    recipes = [shipped_recipes()[name] for name in ("beyond-search", "beyond-margin", "beyond-decay")]
    found = [one for recipe in recipes for one in expand(read_document(recipe))]
    meant = set()
    for one in found:
        (spec,) = one.recipe.model_copy(update={"scenario": "c10-5", "precision": "bf16"}).resolve(dataset)
        meant.add(_identity(spec.model_copy(update={"scenario": one.recipe.scenario})))
    searched = [record.spec for _, record in Store(ROOT / "searches").records()]
    kept = [spec for spec in searched if spec.method != "md-cg" or _identity(spec) in meant]  # not the paper's search
    assert (len(found), len(meant)) == (200, 196)  # four of the second recipe are of the first, too
    others = [spec for spec in kept if _identity(spec) not in meant]
    assert (len(kept), len(others)) == (197, 11)
    assert {spec.hyperparameters["lam"] for spec in others} == {0.0, 1.0}


def _identity(spec: RunSpec) -> str:
    same = {"fingerprint": "", "batch_size": 0, "seed": 0, "format": 1}
    return spec.model_copy(update=same).digest()


def test_others_are_given_what_md_replay_has() -> None:
    ours = METHODS["md-replay"]()
    for name in ("beyond-c10-5", "beyond-c100-10"):
        found = expand(read_document(shipped_recipes()[name]))
        assert Counter(one.recipe.named_method() for one in found) == dict.fromkeys(
            ("md-replay", "der", "er-ace", "er-lode"), 4
        )
        for one in found:
            (memory,) = one.recipe.memory
            ours_kind = METHODS["md-replay"]
            own = ours_kind.training_of(ours_kind.suited_to(one.recipe.scenario, memory))
            if one.recipe.method != "md-replay":
                own["augment"] = f"crop+flip+{own['augment']}"
                assert {key: getattr(one.recipe, key) for key in own} == own
                assert one.recipe.set == {key: getattr(ours, key) for key in ("distils", "temperature")}
            else:
                assert (
                    "weight_decay" not in one.recipe.model_fields_set or one.recipe.weight_decay == own["weight_decay"]
                )
                assert not one.recipe.set
