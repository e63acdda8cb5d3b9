"""What there is to tell of a classifier: tables for the terminal, and the same as plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mdcg import markup
from mdcg.files import shown
from mdcg.header import Label, Setup, Version
from mdcg.learner.accuracy import Evaluation, mean_of
from mdcg.learner.inputs import listing, number_of
from mdcg.learner.task import Relabelled
from mdcg.saved import SavedModel

LONGEST_LINE = 10_000  # characters; what a file says cannot make two lines of one
WIDEST_NAME = 24  # characters of a class's name in a table
CELL = 5  # characters of a column of the confusion matrix


def learned_table(saved: SavedModel) -> Table:
    """Every class after the last call of `learn`: its images, and how it fared before and after."""
    version, known = saved.versions[-1], len(saved.versions[-1].before)
    table = _table("class", "images", "held out", "before", "after")
    for position, name in enumerate(saved.classes):
        before = version.before[position] if position < known else None
        numbers = version.images[position], version.held_out[position]
        style = "" if position < known else "bold"
        table.add_row(_name(name), *map(str, numbers), _percent(before), _percent(version.after[position]), style=style)
    old, now, new = mean_of(version.before), mean_of(version.after[:known]), mean_of(version.after[known:])
    parts = [f"known classes {_percent(old)} → {_percent(now)}"] if known else []
    table.caption = ", ".join([*parts, f"new classes {_percent(new)}"]) + ": percent of the images held out"
    return table


def told_of_relabelled(relabelled: Relabelled, classes: Sequence[Label], known: int, thing: str = "image") -> list[str]:
    """Sentences about images (or rows) with another label than they were learned with; so many classes were known.

    >>> from collections import Counter
    >>> for sentence in told_of_relabelled(Counter({(0, 1): 4, (1, 0): 2, (0, 2): 1}), ["cup", "fork", "mug"], 2):
    ...     print(sentence)
    6 images have another label than they were learned with: 4 of 'cup' come as 'fork', 2 of 'fork' come as 'cup'; \
they are left out, and what was learned stays. To correct labels, begin anew with all images.
    1 image has another label than it was learned with: 1 of 'cup' comes as 'mug'; it is learned with both. To correct \
labels, begin anew with all images.
    """
    sentences = []
    for is_new in (False, True):
        pairs = {pair: count for pair, count in relabelled.most_common() if (pair[1] >= known) == is_new}
        total = sum(pairs.values())
        if not total:
            continue
        told = [
            f"{count} of '{shown(str(classes[was]), 60)}' {'comes' if count == 1 else 'come'} as "
            f"'{shown(str(classes[now]), 60)}'"
            for (was, now), count in pairs.items()
        ]
        have, were, are = ("has", "it was", "it is") if total == 1 else ("have", "they were", "they are")
        done = "learned with both" if is_new else "left out, and what was learned stays"
        sentences.append(
            f"{number_of(total, thing)} {have} another label than {were} learned with: {listing(told, most=3)}; {are} "
            f"{done}. To correct labels, begin anew with all {thing}s."
        )
    return sentences


def summary_line(saved: SavedModel, path: Path) -> str:
    """A file in one line: what is in it, and how large it is."""
    return f"{shown(path)}: {_learned(saved)}, {path.stat().st_size / 1e6:.1f} MB"


def one_line(saved: SavedModel) -> str:
    """A classifier in one line, as Python prints it."""
    return f"{shown(saved.setup.method) or 'method not known'}, {_learned(saved)}"


def as_html(saved: SavedModel) -> str:
    """A classifier as a notebook shows it: every class, and its accuracy after each call of `learn`."""
    head = ["class", *(f"after task {number + 1}" for number in range(len(saved.versions)))]
    title = one_line(saved) + (": percent of the images held out" if saved.versions else "")
    return markup.titled(
        title,
        markup.table(head, [[_name(name), *_accuracies(saved, place)] for place, name in enumerate(saved.classes)]),
    )


def info_panel(saved: SavedModel, path: Path) -> RenderableType:
    """All that a file tells of its classifier, with the accuracy of every class over time."""
    setup = saved.setup
    channels, height, width = setup.shape
    settings = {**setup.hyperparameters, **setup.head_settings}
    lines = [
        summary_line(saved, path),
        f"rows of {number_of(channels, 'feature')}"
        if setup.is_features
        else f"images of {height} × {width} pixels, {number_of(channels, 'channel')}",
        f"network: {'none' if setup.is_features else setup.backbone} with the head {setup.head}, seed {setup.seed}",
        f"method: {setup.method or 'not known'}" + (f" ({_settings(settings)})" if settings else ""),
        f"training: batches of {setup.batch_size}, learning rate {setup.lr:g}, "
        + (f"momentum {setup.momentum:g}" if setup.optimizer == "sgd" else setup.optimizer)
        + "".join(f", {words}" for words in _besides(setup)),
    ]
    start = 0
    for number, size in enumerate(saved.sizes):
        version = saved.versions[number] if len(saved.versions) == len(saved.sizes) else None
        when = f" ({_trained(version)})" if version else ""
        lines.append(f"task {number + 1}{when}: {listing(saved.classes[start : start + size], most=20)}")
        start += size
    parts: list[RenderableType] = [Text("\n".join(shown(line, LONGEST_LINE) for line in lines))]
    if saved.versions:
        parts.append(over_time(saved))
    return Group(*parts)


def _trained(version: Version) -> str:
    """When a task was learned, and how long that took."""
    took = number_of(version.epochs, "epoch"), number_of(version.steps, "step"), f"{version.seconds:g} s"
    return ", ".join([version.finished[:10], *took])


def _besides(setup: Setup) -> list[str]:
    """What else there is to say of the training: schedule, decay and augmentation, where it has them."""
    return [
        *([f"schedule {setup.schedule}"] if setup.schedule != "constant" else []),
        *([f"weight decay {setup.weight_decay:g}"] if setup.weight_decay else []),
        *([f"crop by {number_of(setup.padding, 'pixel')}"] if setup.padding else []),
        *(["flip"] if setup.flip else []),
        *setup.augment,
    ]


def over_time(saved: SavedModel) -> Table:
    """The accuracy of every class after each call of `learn`."""
    table = _table("class", *(f"after {number + 1}" for number in range(len(saved.versions))))
    for position, name in enumerate(saved.classes):
        table.add_row(_name(name), *_accuracies(saved, position))
    table.add_row("mean", *(_percent(mean_of(version.after)) for version in saved.versions), style="bold")
    table.caption = "percent of the images held out, as they were then"
    return table


def evaluation_table(now: Evaluation, then: Evaluation | None, saved: SavedModel) -> Table:
    """Every class on labelled images: its accuracy, what has fallen, and what it is most often taken for."""
    earlier = ["before", "change"] if then else []
    table = _table("class", "images", "accuracy", *earlier, "most often taken for")
    table.columns[-1].justify = "left"
    was = dict(zip(then.classes, then.class_accuracy, strict=True)) if then else {}
    for position, name in enumerate(now.classes):
        found, old = now.class_accuracy[position], was.get(name)
        changed = [_percent(old), _change(old, found)] if then else []
        mistake = now.most_taken_for(position)
        other = f"{_name(mistake[0])} ({mistake[1]})" if mistake else ""
        table.add_row(_name(name), str(now.images[position]), _percent(found), *changed, other)
    changed = [_percent(then.accuracy) if then.classes == now.classes else "", ""] if then else []
    table.add_row("all images", str(sum(now.images)), _percent(now.accuracy), *changed, "", style="bold")
    if then is None and len(saved.versions) > 1 and (fell := _fell(saved)):
        table.caption = f"on the images held out by 'learn', since the version before: {fell}"
    return table


def confusion_table(now: Evaluation, width: int) -> RenderableType:
    """Which class is taken for which, as far as it fits into a line."""
    first = max(len(_name(name)) for name in now.classes)
    if first + CELL * len(now.classes) > width:
        return Text(f"(the confusion matrix of {len(now.classes)} classes is too wide to print; --json has it)")
    table = Table(title="images of a class (row) by the class they were taken for (column)", title_justify="left")
    table.box = box.SIMPLE_HEAD
    table.add_column("")
    for number, _ in enumerate(now.classes):
        table.add_column(str(number + 1), justify="right", no_wrap=True)
    for number, (name, row) in enumerate(zip(now.classes, now.confusion.tolist(), strict=True)):
        cells = [
            Text(str(count) if count else "·", style="bold" if place == number else "")
            for place, count in enumerate(row)
        ]
        table.add_row(f"{number + 1} {_name(name)}", *cells)
    return table


def evaluation_json(now: Evaluation, then: Evaluation | None) -> dict[str, Any]:
    """An evaluation as plain values; accuracies in percent."""
    was = dict(zip(then.classes, then.class_accuracy, strict=True)) if then else {}
    classes = [
        {"class": name, "images": images, "accuracy": accuracy} | ({"before": was.get(name)} if then else {})
        for name, images, accuracy in zip(now.classes, now.images, now.class_accuracy, strict=True)
    ]
    return {
        "accuracy": now.accuracy,
        **({"before": then.accuracy} if then and then.classes == now.classes else {}),
        "classes": classes,
        "confusion": now.confusion.tolist(),
    }


def described(saved: SavedModel, path: Path) -> dict[str, Any]:
    """A classifier as plain values."""
    kept = saved.kept
    return {
        "file": str(path),
        "bytes": path.stat().st_size,
        "classes": list(saved.classes),
        "tasks": saved.sizes,
        "can_learn": kept is not None,
        "memory": {"images": 0 if kept is None else len(kept.memory.positions), "size": saved.setup.memory},
        "setup": asdict(saved.setup),
        "versions": [asdict(version) for version in saved.versions],
    }


def _accuracies(saved: SavedModel, position: int) -> list[str]:
    """The accuracy of a class after each call of `learn`."""
    every = [version.after for version in saved.versions]
    return [_percent(after[position] if position < len(after) else None) for after in every]


def _learned(saved: SavedModel) -> str:
    return f"{len(saved.classes)} classes in {_counted(len(saved.sizes), 'task')}, {_kept(saved)}"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _name(name: object) -> str:
    return shown(str(name), WIDEST_NAME)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _change(before: float | None, now: float | None) -> str:
    return "" if before is None or now is None else f"{now - before:+.1f}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in settings.items()
    )


def _kept(saved: SavedModel) -> str:
    kept = saved.kept
    if kept is None:
        return "no images kept, so that it can learn no more"
    if kept.seen is not None:
        return f"all {len(kept.seen.positions):,} images kept"
    return (
        f"memory of {len(kept.memory.positions):,} of {saved.setup.memory:,} images"
        if saved.setup.memory
        else "no memory"
    )


def _fell(saved: SavedModel) -> str:
    """The classes that have lost accuracy by the last call of `learn`."""
    version = saved.versions[-1]
    pairs = zip(saved.classes, version.before, version.after, strict=False)
    fell = [
        f"{_name(name)} {was:.1f} → {now:.1f}"
        for name, was, now in pairs
        if was is not None and now is not None and now < was
    ]
    return listing(fell)
