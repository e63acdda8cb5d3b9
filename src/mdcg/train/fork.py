"""Forking: task 1 is trained once for all members that share it.

Members of one seed that differ in memory size or in a method's settings are the same run until task 1 is over, if
the method says so. One of them, the founder, trains for all; after that each goes its own way.
"""

from __future__ import annotations

from dataclasses import replace

from mdcg.train.group import Group
from mdcg.train.precision import Compute
from mdcg.train.state import State, dump, empty_memories, fill_memories, restore, select_members


def founders(group: Group) -> tuple[Group, list[int]]:
    """The group that trains task 1, and for each member which of these it comes from."""
    said = vars(type(group.method)).get("forks", False)  # of itself: a subclass may use its settings in task 1
    # A memory that is used in task 1 matters there.
    if not said or group.memory_draws(task=0) or group.method.trains_on == "memory":
        return group, list(range(len(group.members)))
    keys = [(one.seed, tuple(sorted(one.head_settings.items())), one.numbers) for one in group.members]
    first = list(dict.fromkeys(keys))
    chosen = tuple(group.members[keys.index(key)] for key in first)
    return replace(group, members=chosen), [first.index(key) for key in keys]


def fork(state: State, group: Group, parents: list[int], compute: Compute) -> State:
    """Make the group's state after task 1, from its founders'."""
    forked = restore(*select_members(*dump(state), parents), group, compute)
    forked.memories = empty_memories(group)
    fill_memories(forked, group, task=0)
    forked.forked = True
    return forked
