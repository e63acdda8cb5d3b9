"""The learning rate within a task, as a factor for each step: first the warm-up, then the schedule."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mdcg.train.group import ScheduleName

RATE = "rate"  # by this name an epoch's draws have the factors, (K, steps)
Factors = npt.NDArray[np.float64]


def factors(schedule: ScheduleName, warmup: float, total: int, steps: range) -> Factors:
    """The factor of the learning rate in these of a task's `total` steps.

    The rate rises in equal parts over the first round(warmup · total) steps. After that `cosine` falls from 1 towards 0
    over the steps that are left, and `step` divides by ten at half and at three quarters of all steps.

    >>> factors("cosine", 0.0, 4, range(4)).round(3).tolist()
    [1.0, 0.854, 0.5, 0.146]
    >>> factors("step", 0.2, 10, range(10)).tolist()
    [0.5, 1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.01, 0.01]
    """
    now, rising = np.arange(steps.start, steps.stop), round(warmup * total)
    if schedule == "cosine":
        found = (1 + np.cos(np.pi * (now - rising) / max(1, total - rising))) / 2
    elif schedule == "step":
        found = np.where(4 * now >= 3 * total, 0.01, np.where(2 * now >= total, 0.1, 1.0))
    else:
        found = np.ones(len(now))
    return np.where(now < rising, (now + 1) / max(1, rising), found)
