"""Triton's interpreter, which runs the kernels where there is no GPU: as GPUs compute, and nothing in vain."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, interpreter_builder

ADDRESS = np.dtype(np.uint64)
_patch_lang, _type_of_numbers = interpreter._patch_lang, cache(interpreter._get_np_dtype)


def prepare() -> None:
    """Change it for this process, in which no kernel is compiled."""
    # Of a number and of what is none, the maximum is the number.
    InterpreterBuilder.create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)
    InterpreterBuilder.create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)
    # Half of the time went to these.
    interpreter._patch_lang = _patched_for
    interpreter._get_np_dtype = _numpy_type
    assert not interpreter_builder.options.debug  # what it finds out about overflows, it says only then
    interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)


def _patched_for(kernel: Any) -> SimpleNamespace:
    """Have Triton's language interpreted once and for all, not anew for each kernel and all that it calls."""
    return _patched(*(one for one in kernel.__globals__.values() if inspect.ismodule(one) and one in (tl, tl.core)))


@cache
def _patched(*languages: Any) -> SimpleNamespace:
    _patch_lang(SimpleNamespace(__globals__={language.__name__: language for language in languages}))
    return SimpleNamespace(restore=lambda: None)


def _numpy_type(kind: Any) -> np.dtype[Any]:
    """Without a table of all types for each question."""
    return ADDRESS if isinstance(kind.scalar, tl.pointer_type) else _type_of_numbers(kind.scalar)
