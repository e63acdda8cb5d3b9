"""Commands for many runs at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mdcg.cli.app import app
from mdcg.cli.options import CHECK_PROBES, print_json
from mdcg.cli.train import again, stopped_explained
from mdcg.compiler import start_early
from mdcg.errors import MdcgError
from mdcg.terminal import PlainConsole, say

if TYPE_CHECKING:
    from mdcg.execute.local import Executor
    from mdcg.execute.plan import Plan, Undone


@app.command()
def sweep(
    recipe: Annotated[str, typer.Argument(help="A YAML file, or a name of 'mdcg list recipes'.")],
    only: Annotated[list[str] | None, typer.Option(help="Only these, as method=md-cg,replay,memory=500.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds in place of the recipe's, for instance 0-4.")] = None,
    preset: Annotated[str | None, typer.Option(help="paper or published, in place of the recipe's.")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what would run and how long it may take; run nothing.")
    ] = False,
    no_pixels: Annotated[
        bool, typer.Option("--no-pixels", help="Keep no images in the models' files, which then cannot learn more.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Repeat finished runs; what probes measured of them goes too.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what failed before.")] = False,
    on: Annotated[
        str | None,
        typer.Option(
            help="ray:ADDRESS, to train on a Ray cluster; ray:auto, on that of the environment; ray, on one that is "
            "started on this machine, out of others' reach."
        ),
    ] = None,
    jobs_per_gpu: Annotated[
        int | None, typer.Option(min=1, help="Groups that share a GPU of the cluster and its memory.  [default: 1]")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for runs.  [default: runs]")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder or archive of the dataset.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.  [default: auto]")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32, tf32, bf16 or fp64.  [default: auto]")] = None,
    members: Annotated[int | None, typer.Option(min=1, help="Most runs to train together.")] = None,
    log: Annotated[list[str] | None, typer.Option(help="Tell a tracker of the runs: tensorboard or mlflow.")] = None,
    probe: Annotated[list[str] | None, typer.Option(help="Measure as they train, see 'mdcg list probes'.")] = None,
    check_probes: Annotated[bool, typer.Option("--check-probes", help=CHECK_PROBES)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Train everything that a recipe with axes means, and print the table. Given again, it goes on where it was."""
    if not plan and on is None:
        start_early(device, precision)
    from mdcg.execute.sweep import Sweep
    from mdcg.recipes.document import read_document
    from mdcg.recipes.grid import axis_labels
    from mdcg.report.sweep_tables import sweep_json, sweep_table
    from mdcg.results.settings import of_sweep

    asked = {"seeds": seeds, "preset": preset, "out": out, "data": data, "device": device, "precision": precision}
    given = {key: value for key, value in asked.items() if value is not None}
    document = read_document(recipe)
    work = Sweep.of(
        document,
        only=_wanted(only or [], axis_labels(document) if only else {}),
        members=members,
        log=tuple(log or ()),
        probes=tuple(probe or ()),
        check_probes=check_probes,
        fresh=fresh,
        pixels=not no_pixels,
        **given,
    )
    executor = _executor(on, jobs_per_gpu)
    if plan:
        return _print_plan(work.plan(retry, executor), as_json)
    undone = stopped_explained(lambda: work.run(retry or fresh, executor=executor), again(fresh))
    settings = of_sweep(work)
    if as_json:
        print_json(sweep_json(work, settings, undone))
    else:
        console = PlainConsole()
        if settings:
            table, caption = sweep_table(work, settings, console)
            console.print(table)
            say(caption)
        else:
            say("No run is finished.")
    if undone:
        _say_what_is_undone(undone)
        raise SystemExit(1)
    return None


def _say_what_is_undone(undone: Undone) -> None:
    for runs, then in (
        (undone.failed, "what failed is left out from now on; --retry tries it again."),
        (undone.left, "give the same command again for what is not finished."),
    ):
        reasons = list(runs.values())
        for reason in dict.fromkeys(reasons):
            say(f"mdcg: {reasons.count(reason)} of {len(reasons)} runs not finished: {reason}", error=True)
        if reasons:
            say(f"mdcg: {then}", error=True)


def _wanted(texts: list[str], labels: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Parse `method=md-cg,replay,memory=500`: a part without = is one more value.

    The names of an axis's values may have commas and = in them; of several that begin alike the longest is meant.
    """
    wanted: dict[str, list[str]] = {}
    key, rest = "", ",".join(texts) if texts else None
    while rest is not None:
        rest = rest.strip()
        if "=" in rest.split(",")[0] and not _label(rest, labels.get(key, ())):
            key, rest = (part.strip() for part in rest.split("=", 1))
        value = _label(rest, labels.get(key, ())) or rest.split(",")[0]
        if not key or not value.strip():
            raise MdcgError(f"'{','.join(texts)}' says not what to keep; write --only method=md-cg,memory=500.")
        wanted.setdefault(key, []).append(value.strip())
        rest = rest[len(value) + 1 :] if len(rest) > len(value) else None
    return wanted


def _label(text: str, labels: Sequence[str]) -> str:
    """The longest label that a text begins with, up to a comma or its end; empty if there is none."""
    return max((label for label in labels if f"{text},".startswith(f"{label},")), key=len, default="")


def _executor(on: str | None, jobs_per_gpu: int | None) -> Executor | None:
    if on is None:
        if jobs_per_gpu is not None:
            raise MdcgError("--jobs-per-gpu is about a cluster's GPUs; give it together with --on ray:ADDRESS.")
        return None
    kind, _, address = on.partition(":")
    if kind != "ray":
        raise MdcgError(f"'{on}' is no place to train on; write --on ray, or --on ray:ADDRESS for a running cluster.")
    from mdcg.execute.ray import RayExecutor

    return RayExecutor(address or None, jobs_per_gpu or 1)


def _print_plan(planned: Plan, as_json: bool) -> None:
    from mdcg.report.sweep_tables import plan_json, plan_table
    from mdcg.train.display import duration

    if as_json:
        return print_json(plan_json(planned))
    runs = sum(len(job.specs) for job in planned.jobs)
    if planned.jobs:
        PlainConsole().print(plan_table(planned))
    time = f", about {duration(planned.seconds)}" if runs and planned.seconds is not None else ""
    say(f"To train: {runs} runs in {len(planned.jobs)} groups{time}. Finished: {len(planned.finished)}.")
    if runs and planned.seconds is None:
        say("How long that takes can be told once a run of the same network and device is finished here.")
    elif runs and not planned.measured:
        say("The time is from other machines; it can be told better once such a run is finished here.")
    if planned.failed:
        say(f"Failed before and left out: {len(planned.failed)}; --retry tries them again.")
    return None
