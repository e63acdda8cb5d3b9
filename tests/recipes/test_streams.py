"""Streams as recipes say them: a scenario's name, or a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mdcg.errors import MdcgError
from mdcg.recipes.document import read_document
from mdcg.recipes.grid import expand, grid_cells
from mdcg.recipes.recipe import make_recipe
from mdcg.runs.spec import RunSpec
from mdcg.scenario import Stream
from mdcg.testing import toy_dataset

DATASET = toy_dataset([40] * 6)
NAMES = DATASET.class_names


def resolved(scenario: Any, method: str = "replay", **keys: Any) -> RunSpec:
    return make_recipe(scenario=scenario, method=method, memory=20, **keys).resolve(DATASET)[0]


def table(**keys: Any) -> dict[str, Any]:
    return {"dataset": "digits", **keys}


def test_a_table_is_a_name_and_the_keys_beside_it() -> None:
    assert resolved(table(tasks=3)) == resolved("digits-3")
    assert (
        resolved(table(sizes=[3, 1, 2])) == resolved("digits-3", sizes=[3, 1, 2]) == resolved("digits-3", sizes="3,1,2")
    )
    assert resolved(table(tasks=3, blurry=0.2, online=True)) == resolved("digits-3", blurry=0.2, online=True)
    lists = [[NAMES[1], NAMES[0]], [NAMES[5]]]
    assert resolved(table(tasks=lists)) == resolved("digits-2", tasks=lists)
    assert resolved(table(tasks=lists)).stream == Stream(tasks=tuple(map(tuple, lists)))
    assert resolved(table(tasks=2, order=[*lists[0], *lists[1]])).stream == Stream(tasks=tuple(map(tuple, lists)))


def test_what_means_the_same_is_the_same_run() -> None:
    usual = resolved("digits-3")
    assert resolved("digits-3", sizes=[2, 2, 2]) == resolved("digits-3", first=2) == usual
    assert resolved("digits-3", first=4).stream.sizes == (4, 1, 1)
    assert resolved("digits-3", first=4).name != usual.name
    assert resolved("digits-3", order=NAMES).stream.tasks == (NAMES[:2], NAMES[2:4], NAMES[4:])
    assert resolved("digits-3", online=True).epochs == 1


@pytest.mark.parametrize(
    "keys",
    [
        {"sizes": [1, 4, 1]},
        {"order": NAMES[::-1]},
        {"tasks": [[NAMES[0], NAMES[3]], [NAMES[1]], [NAMES[3]]], "returning": True},
        {"first": 4, "blurry": 0.25},
        {"online": True, "batch_size": 8},
    ],
)
def test_a_run_says_how_to_repeat_it(keys: dict[str, Any]) -> None:
    spec = resolved("digits-3", **keys)
    assert ("epochs" in spec.as_recipe()) != spec.stream.online  # where there is but one, nothing is said of it
    (again,) = make_recipe(**spec.as_recipe()).resolve(DATASET)
    assert again == spec
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("scenario", "keys", "told"),
    [
        (
            table(tasks=[["class 0"], ["class 1", "class 0"]]),
            {},
            "class 'class 0' is in tasks 1 and 2; keep one, or say",
        ),
        (table(tasks=[["class 0", "class 0"], ["class 1"]]), {}, "class 'class 0' is twice in task 1"),
        (table(tasks=[["class 0"], []]), {}, "task 2 has no class"),
        (table(tasks=[["class 9"]]), {}, "unknown class 'class 9'"),
        (table(tasks=[["class 0"]], order=["class 0"]), {}, "leave 'order' out"),
        ("digits-3", {"tasks": [["class 0"], ["class 1"]]}, "'tasks' lists 2 tasks, the scenario's name says 3"),
        ("digits-3", {"returning": True}, "classes come back only where 'tasks' lists them"),
        ("digits-3", {"first": 2, "sizes": [2, 2, 2]}, "leave 'first' out"),
        ("digits-3", {"first": 0}, "after a first task of 0 classes, 6 are left for 2 more tasks; give another"),
        ("digits-3", {"first": -1}, "after a first task of -1 classes"),
        ("digits-3", {"first": 5}, "after a first task of 5 classes, 1 are left for 2 more tasks; give another"),
        ("digits-1", {"first": 6}, "after a first task of 6 classes, 0 are left for 0 more tasks; give another"),
        (table(tasks=3), {"blurry": 2}, "'blurry' is wrong"),
        (table(tasks=3, blurry=0.1), {"blurry": 0.1}, "'blurry' is given in the scenario and beside it"),
        (table(tusks=3), {}, "unknown key of a scenario 'tusks'; did you mean 'tasks'?"),
        (table(), {}, "a scenario needs a dataset and its tasks"),
        ({"tasks": 3}, {}, "a scenario needs a dataset and its tasks"),
        (table(tasks=[["class 0"], ["class 1", "class 0"]], returning=True), {"method": "ss-il"}, "ss-il cannot learn"),
    ],
)
def test_a_stream_that_cannot_be(scenario: Any, keys: dict[str, Any], told: str) -> None:
    with pytest.raises(MdcgError) as error:
        resolved(scenario, **keys)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("counts", "keys", "told"),
    [
        ([5] * 6, {"online": True, "hold_out": 0.3, "batch_size": 9}, "too few for a batch of 9"),
        (
            [1, *[5] * 5],
            {"tasks": [["class 0"], ["class 1"], ["class 0"]], "returning": True},
            "task 3 of seed 0 brings no",
        ),
        (
            [1, *[40] * 5],
            {"online": True, "method": "md", "set": {"look_ahead": 2}, "batch_size": 30, "seeds": [7]},
            "in a whole batch",
        ),
        ([40] * 6, {"online": True, "method": "md", "preset": "published"}, "cannot learn a stream"),
        ([40] * 6, {"online": True, "method": "md", "set": {"look_ahead": 2}, "schedule": "cosine"}, "go by tasks"),
    ],
)
def test_images_that_do_not_suffice(counts: list[int], keys: dict[str, Any], told: str) -> None:
    recipe = make_recipe(**{"scenario": "digits-3", "method": "replay", "memory": 20, "seeds": [0], **keys})
    with pytest.raises(MdcgError) as error:
        recipe.resolve(toy_dataset(counts))
    assert told in str(error.value)


def test_streams_are_an_axis(tmp_path: Path) -> None:
    file = tmp_path / "streams.yaml"
    file.write_text(
        "scenario: {dataset: digits, tasks: 3}\nmethod: replay\nmemory: 20\n"
        "axes: {blurry: [0, 0.2], online: [false, true]}\n"
    )
    cells = grid_cells(expand(read_document(file)), lambda recipe: DATASET)
    assert [cell.labels for cell in cells] == [
        {"blurry": blurry, "online": online} for blurry in ("0", "0.2") for online in ("False", "True")
    ]
    assert len({cell.specs[0].name for cell in cells}) == 4
    file.write_text("method: replay\nmemory: 20\nscenario:\n  dataset: digits\n  tasks: [[class 0], [class 0]]\n")
    with pytest.raises(MdcgError, match=r"streams.yaml, line 3: class 'class 0' is in tasks 1 and 2"):
        grid_cells(expand(read_document(file)), lambda recipe: DATASET)
