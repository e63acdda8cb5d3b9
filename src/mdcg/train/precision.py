"""The device and the number format in which a run computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from mdcg.errors import MdcgError, unknown
from mdcg.models import kernels

PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp64")


@dataclass(frozen=True)
class Compute:
    """A device and a precision: parameters, statistics and loss in `dtype`, the backbone perhaps in bf16."""

    device: torch.device
    precision: str

    @property
    def dtype(self) -> torch.dtype:
        """The number format of parameters, statistics and loss."""
        return torch.float64 if self.precision == "fp64" else torch.float32

    @property
    def maps(self) -> torch.dtype:
        """The number format of images and feature maps."""
        return torch.bfloat16 if self.precision == "bf16" else self.dtype

    @property
    def fused(self) -> bool:
        """Whether backbones may use the fused kernels: their products are TF32's or bf16's, since compute 8.0."""
        if self.device.type != "cuda" or self.precision not in ("tf32", "bf16"):
            return False
        return kernels.available() and torch.cuda.get_device_capability(self.device) >= (8, 0)

    @contextlib.contextmanager
    def settings(self, threads: int | None = None) -> Iterator[None]:
        """Switch TF32 and fused kernels on or off for the length of a run, on a CPU with so many threads."""
        before = torch.get_num_threads()
        matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        tf32 = self.precision == "tf32"
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
        torch.set_num_threads(threads or before)
        try:
            with kernels.use(self.fused):
                yield
        finally:
            torch.set_float32_matmul_precision(matmul)
            torch.backends.cudnn.allow_tf32 = cudnn
            torch.set_num_threads(before)

    def wait(self) -> None:
        """Wait until the device has done all it was given: what is timed next is then its own."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def put(self, array: npt.NDArray[Any]) -> Tensor:
        """Copy a host array to the device."""
        return torch.from_numpy(array).to(self.device)

    def autocast(self) -> torch.autocast:
        """The context in which the backbone computes in bf16, where that is asked for."""
        # Each weight is used once per pass: there is nothing to cache, and a cache would not survive a CUDA graph.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False)


def compute(device: str, precision: str) -> Compute:
    """Resolve `auto`: the GPU where there is one; TF32 on a GPU, float32 on a CPU."""
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    if chosen not in ("cpu", "cuda"):
        raise unknown("device", device, ("auto", "cpu", "cuda"))
    if chosen == "cuda" and (trouble := _cuda_trouble()):
        raise MdcgError(f"no CUDA GPU can be used here ({trouble}); fix that, or use --device cpu.")
    if precision == "auto":
        precision = "tf32" if chosen == "cuda" else "fp32"
    return Compute(torch.device(chosen), precision)


def _cuda_trouble() -> str | None:
    """The trouble with the GPU, if any: PyTorch knows of missing and old drivers, and of GPUs it has no code for."""
    if not torch.backends.cuda.is_built():
        return "this PyTorch was built without CUDA"
    try:
        torch.zeros(1, device="cuda").add_(1).item()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0].rstrip(".")
    return None
