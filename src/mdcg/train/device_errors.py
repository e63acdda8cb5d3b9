"""The errors of a machine while it trains, told apart from others and put into words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import torch

from mdcg.errors import MachineError, MdcgError

# What PyTorch, cuDNN and, of a CPU, oneDNN say where memory is short.
SHORTAGE = "out of memory|allocate memory|enough memory|bad_alloc|ALLOC_FAILED|32BitIndex|could not create a primitive"
GPU = "CUDA|cuDNN|CUBLAS"


class OutOfMemory(Exception):
    """The error for a memory that is too small."""


@contextlib.contextmanager
def device_errors_explained() -> Iterator[None]:
    """Turn errors of memory, GPU and graph capture within into ones that say what to do."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise OutOfMemory from error
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        if re.search("captur", str(error)):
            raise MdcgError(
                f"a training step cannot be captured as a CUDA graph ({reason}); a backbone or method of your own must "
                "not wait for the GPU (.item(), shapes that depend on values), or set MDCG_GRAPHS=off."
            ) from error
        if is_device_error(error):
            raise MachineError(
                f"the GPU stopped working ({reason}); what was saved is kept: give the same command again, or go on "
                "with --device cpu."
            ) from error
        raise


def is_device_error(error: BaseException) -> bool:
    """Whether memory or the GPU is to blame, not what was computed.

    What PyTorch cannot do with a kind of tensor is no machine's fault: such an error names all backends, CUDA too.
    """
    if not isinstance(error, MemoryError | RuntimeError) or isinstance(error, NotImplementedError):
        return False
    return is_out_of_memory(error) or re.search(GPU, str(error)) is not None


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory was short: PyTorch says so by its own error, Python's, and plain ones of the CPU and of cuDNN."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or re.search(SHORTAGE, str(error)):
        return True
    # A capture that ran out of memory ends with an error of its own.
    return isinstance(error.__context__, Exception) and is_out_of_memory(error.__context__)
