"""The check that a look has changed nothing: all that a probe can reach, to the bit, before and after."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mdcg.models import Model
from mdcg.probes.base import ProbeError
from mdcg.train.loop import Trainer
from mdcg.train.state import State

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")  # of a module, in torch
OF_STATE = {
    "optimizer": "the optimiser's memory",
    "memories": "the memories",
    "stored_logits": "the stored logits",
    "correct": "the counts of correct answers",
    "loss_sum": "the sums of the epoch",
    "hits": "the sums of the epoch",
    "history": "the history",
    "within": "the history",
    "measured": "what probes have measured",
    "measuring": "what probes have measured",
}  # every other field says where the training is
PLAIN = ("history", "within", "measured", "measuring")  # lists of numbers, which may be very many
Leaf = tuple[object, ...]  # whatever is equal as long as a value is the same
Held = dict[int, object]  # what was met, by its id, which is nobody else's as long as it is held
Touched = tuple[str, str]  # in words what something is, and its name there


@contextmanager
def untouched(name: str, trainer: Trainer, state: State) -> Iterator[None]:
    """Let a probe look in here, and say what it has changed; else that would go unnoticed."""
    held: Held = {}
    before = dict(_leaves(trainer, state, held))
    yield
    after = dict(_leaves(trainer, state, {}))
    changed: dict[str, list[str]] = {}
    for (what, where), leaf in before.items():
        if after.get((what, where)) != leaf:
            changed.setdefault(what, []).append(where)
    if changed:
        told = " and ".join(f"{what} ({_some(where)})" if where[0] else what for what, where in changed.items())
        raise ProbeError(f"the probe {name} changed {told}; a probe looks and never touches: copy what you change.")


def _some(names: list[str]) -> str:
    """The first of some names, and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _leaves(trainer: Trainer, state: State, held: Held) -> Iterator[tuple[Touched, Leaf]]:
    """All that a look must leave as it is."""
    fields, group = dict(vars(state)), trainer.group
    for title, tree in _of_networks(*(fields.pop(field) for field in ("model", "teacher", "start"))):
        yield from _walk(title, "", tree, held)
    for field, value in fields.items():
        plain = json.dumps(value) if field in PLAIN else value
        yield from _walk(OF_STATE.get(field, "where the training is"), field, plain, held)
    yield from _walk("the images", "", [trainer.images, trainer.eval_images, trainer.pixels], held)
    told = {"members": group.members, "settings": group.training, "dataset": group.dataset, "views": group.views}
    yield from _walk("the group", "", told | ({"streams": group.streams} if group.online else {}), held)
    for title, tree in _of_process().items():
        yield from _walk(title, "", tree, held)


def _of_networks(model: Model, teacher: Model | None, start: Model | None) -> Iterator[tuple[str, object]]:
    """What is kept of networks, and nothing that their forward passes may note down."""
    others = {"the teacher": teacher, "the model as it was when the task began": start}
    wholes = {title: whole for title, whole in others.items() if whole is not None}
    for title, part in ({"the backbone": model.backbone, "the head": model.head} | wholes).items():
        weights = dict(part.named_parameters())
        yield f"weights of {title}", weights
        yield f"gradients of {title}", {name: weight.grad for name, weight in weights.items()}
        yield f"hooks on weights of {title}", {name: list(one._backward_hooks or ()) for name, one in weights.items()}
        yield f"buffers of {title}", dict(part.named_buffers())
    for title, whole in ({"the model": model} | wholes).items():
        modules = {name or "all of it": module for name, module in whole.named_modules()}
        yield f"the classes of {title}", whole.head.sizes
        yield f"the mode (train or eval) of {title}", {name: module.training for name, module in modules.items()}
        hooks = {name: [list(getattr(module, kind)) for kind in HOOKS] for name, module in modules.items()}
        yield f"hooks of {title}", hooks


def _of_process() -> dict[str, object]:
    """What all code of the process shares."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "torch's random numbers": [one.numpy() for one in (torch.get_rng_state(), *cuda)],
        "NumPy's random numbers": np.random.get_state(),  # noqa: NPY002 (to see that nobody draws from it)
        "Python's random numbers": repr(random.getstate()),
        "torch's settings": {
            "gradients": torch.is_grad_enabled(),
            "threads": torch.get_num_threads(),
            "dtype": torch.get_default_dtype(),
            "products": torch.get_float32_matmul_precision(),
            "TF32": torch.backends.cudnn.allow_tf32,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        },
    }


def _walk(what: str, where: str, value: Any, held: Held) -> Iterator[tuple[Touched, Leaf]]:
    """The leaves of a tree of objects, each object once."""

    def below(named: Mapping[Any, object]) -> Iterator[tuple[Touched, Leaf]]:
        for key, one in named.items():
            yield from _walk(what, f"{where}.{key}" if where else str(key), one, held)

    is_object = hasattr(value, "__dict__") and not isinstance(value, type)
    if isinstance(value, np.ndarray | dict | list) or is_object:
        if id(value) in held:
            return
        held[id(value)] = value
    if isinstance(value, Tensor):
        # Another one with the same values would do as well, if nobody else had this one.
        alike = (id(value), value.data_ptr(), value.dtype, value.shape, value.stride(), value.requires_grad)
        yield (what, where), (*alike, _digest(_bits(value)))
    elif isinstance(value, np.ndarray):
        yield (what, where), (value.dtype, value.shape, _digest(value))
    elif isinstance(value, Mapping):
        yield (what, where), tuple(map(repr, value))
        yield from below(value)
    elif isinstance(value, list | tuple):
        yield (what, where), tuple(id(one) if isinstance(one, Tensor) else None for one in value)
        yield from below(dict(enumerate(value)))
    elif is_object:
        yield from below(dict(vars(value)))  # what it gets later is computed when first asked for
    else:
        yield (what, where), (repr(value),)


def _bits(tensor: Tensor) -> npt.NDArray[np.uint8]:
    """The bits of a tensor, wherever it is and in whatever format."""
    flat = tensor.detach().cpu().flatten()
    bits: npt.NDArray[np.uint8] = flat.view(torch.uint8).numpy() if len(flat) else np.empty(0, np.uint8)
    return bits


def _digest(array: npt.NDArray[Any]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array).data).digest()
