"""The command line of the campaign."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from mdcg.testing.abuse.archives import Archives
from mdcg.testing.abuse.arguments import Arguments
from mdcg.testing.abuse.browser import Browser
from mdcg.testing.abuse.campaign import Outcome, Part, attempt
from mdcg.testing.abuse.faults import Faults
from mdcg.testing.abuse.grammar import Commands
from mdcg.testing.abuse.images import Images
from mdcg.testing.abuse.kill import Kill, KillAt
from mdcg.testing.abuse.models import Models
from mdcg.testing.abuse.mutate import Mutate
from mdcg.testing.abuse.nodes import Nodes
from mdcg.testing.abuse.overwrite import Overwrite
from mdcg.testing.abuse.recipes import Recipes
from mdcg.testing.abuse.together import Together
from mdcg.testing.abuse.trees import Trees

PARTS: dict[str, type[Part]] = {
    part.name: part
    for part in (
        *(Kill, KillAt, Mutate, Models, Commands, Recipes, Arguments, Images, Archives, Trees, Overwrite, Faults),
        *(Together, Browser, Nodes),
    )
}
WIDTH = max(map(len, PARTS))


def main(words: Sequence[str] | None = None) -> int:
    """Do all parts of the campaign, or those that are named; print what failed, each as shortly as it can be told."""
    listed = "\n".join(f"  {name:{WIDTH}}  {part.summary()} ({part.usual:,})" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m mdcg.testing.abuse",
        description=main.__doc__,
        epilog=f"parts, and how many trials they usually have:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART[=TRIALS]", help="all parts, where none is named")
    parser.add_argument("--seed", type=int, default=0, help="another one makes other trials")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes, each with its share of trials"
    )
    parser.add_argument("--trial", type=int, help="this trial alone")
    asked = parser.parse_args(words)
    counts: dict[str, int] = {}
    for text in asked.parts or PARTS:
        name, _, count = text.partition("=")
        if name not in PARTS or not (count or "1").isdigit():
            parser.error(f"there is no part '{text}'; name one of {', '.join(PARTS)}, as in kill or kill=100.")
        counts[name] = int(count or PARTS[name].usual)
    outcomes = []
    for name, count in counts.items():
        numbers = range(count) if asked.trial is None else [asked.trial]
        outcomes.append(attempt(PARTS[name], numbers, asked.seed, min(asked.jobs, len(numbers))))
        print(_line(outcomes[-1]), flush=True)
        for failure in outcomes[-1].failures:
            print(f"  {failure}", flush=True)
    failed = sum(len(outcome.failures) for outcome in outcomes)
    print(f"{sum(outcome.trials for outcome in outcomes):,} trials, {failed:,} failures, seed {asked.seed}")
    return 1 if failed else 0


def _line(outcome: Outcome) -> str:
    if outcome.not_tried:
        return f"{outcome.part:{WIDTH}}  not tried: {outcome.not_tried}"
    counts = f"{outcome.trials:6,} trials {len(outcome.failures):4,} failures {outcome.seconds:7.0f} s"
    return f"{outcome.part:{WIDTH}}  {counts}"


if __name__ == "__main__":
    sys.exit(main())
