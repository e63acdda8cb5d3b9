"""The executor of this machine: jobs are done in this process, one after the other."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from mdcg.errors import Busy, MachineError, MdcgError, machine_trouble
from mdcg.execute.context import Context
from mdcg.execute.group import train_group
from mdcg.execute.plan import Job, Undone, make_groups
from mdcg.execute.progress import Display
from mdcg.files import is_locked
from mdcg.probes import ProbeError
from mdcg.runs.environment import own_revision
from mdcg.runs.failures import note_failure
from mdcg.runs.spec import RunSpec

WORKED_ON = "another process is working on it"
LOOKS = 10  # at who holds the runs of a job, as long as somebody is faster


class Executor(Protocol):
    """Whatever executes jobs: this process, or a cluster."""

    def prepare(self, context: Context) -> Context:
        """The context as it is where the work will be done."""

    def execute(self, jobs: Sequence[Job], context: Context, display: Display) -> Undone:
        """Do what can be done of these jobs, whatever happens to one of them."""


class LocalExecutor:
    """The executor of this machine: one job after the other, in this process."""

    def prepare(self, context: Context) -> Context:
        return context

    def execute(self, jobs: Sequence[Job], context: Context, display: Display) -> Undone:
        watched, undone = replace(context, display=display), Undone()
        for job in jobs:
            of_this = do_job(job, watched)
            undone |= of_this
            display.job_ends(job, of_this)
        return undone


def do_job(job: Job, context: Context) -> Undone:
    """Train a job's runs. Errors of the machine are raised; runs that other processes hold are left to them."""
    own_revision()  # now: the files may change while runs train
    undone, specs = Undone(), job.specs
    for _ in range(LOOKS):
        held = {spec.name: WORKED_ON for spec in specs if is_locked(context.store.folder(spec))}
        undone |= Undone(left=held)
        done, specs = _train([spec for spec in specs if spec.name not in held], context)
        undone |= done
        if not specs:
            return undone
    return undone | Undone(left={spec.name: WORKED_ON for spec in specs})


def _train(specs: Sequence[RunSpec], context: Context) -> tuple[Undone, list[RunSpec]]:
    """Train runs that nobody held a moment ago; return also those in whose group somebody holds one by now."""
    store, undone, again = context.store, Undone(), list[RunSpec]()
    for together in make_groups(specs, context, lambda _: len(specs)):  # in parts, if it was in parts before
        details, errors = "", list[Exception]()
        try:
            failures = train_group(together, context)
        except (MachineError, ProbeError):
            raise
        except Busy:  # the others of its group need not wait
            again += together
            continue
        except Exception as error:  # of a method or backbone of a user's own, for instance: the others go on
            if trouble := machine_trouble(error):
                raise trouble from error  # no run is to blame
            reason = str(error) if isinstance(error, MdcgError) else f"{type(error).__name__}: {error}"
            details = "" if isinstance(error, MdcgError) else traceback.format_exc()
            failures = {spec.name: reason for spec in together if store.stored(spec) is None}
            errors.append(error)
        for spec in together:
            if spec.name in failures:
                note_failure(store, spec, failures[spec.name], details)
        undone |= Undone(failures, errors=errors)
    return undone, again
