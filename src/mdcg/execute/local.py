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
    store = context.store
    undone = Undone(
        left={spec.name: "another process is working on it" for spec in job.specs if is_locked(store.folder(spec))}
    )
    free = [spec for spec in job.specs if spec.name not in undone.left]
    for together in make_groups(free, context, lambda _: len(free)):  # in parts, if it was in parts before
        details, errors = "", list[Exception]()
        try:
            failures = train_group(together, context)
        except (MachineError, ProbeError):
            raise
        except Busy as busy:  # since we looked
            undone |= Undone(left={spec.name: str(busy) for spec in together if store.finished(spec) is None})
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
    return undone
