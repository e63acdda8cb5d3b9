"""What a device and a precision come to; what only a GPU can show is in test_gpu.py."""

from __future__ import annotations

import contextlib

import pytest
import torch

from mdcg.models import kernels
from mdcg.train.precision import Compute


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(("capability", "able"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_who_may_use_the_fused_kernels(
    device: str, capability: tuple[int, int], able: bool, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs from compute 8.0 on, with Triton and where it was not switched off, and not in full precision."""
    monkeypatch.setattr(kernels, "available", lambda: there)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    found = {
        precision: Compute(torch.device(device), precision).fused for precision in ("fp32", "tf32", "bf16", "fp64")
    }
    wanted = device == "cuda" and able and there
    assert found == {"fp32": False, "tf32": wanted, "bf16": wanted, "fp64": False}


@pytest.mark.parametrize(
    ("precision", "numbers", "maps"),
    [
        ("fp32", torch.float32, torch.float32), ("tf32", torch.float32, torch.float32),
        ("bf16", torch.float32, torch.bfloat16), ("fp64", torch.float64, torch.float64),
    ],
)  # fmt: skip
def test_number_formats(precision: str, numbers: torch.dtype, maps: torch.dtype) -> None:
    machine = Compute(torch.device("cpu"), precision)
    assert (machine.dtype, machine.maps) == (numbers, maps)


def test_settings_hold_for_the_length_of_a_run() -> None:
    """TF32 where it is asked for and nowhere else, and so many threads; then all is as it was, whatever happened."""

    def now() -> tuple[str, bool, int]:
        tf32 = torch.backends.cudnn.allow_tf32
        return torch.get_float32_matmul_precision(), tf32, torch.get_num_threads()

    before = now()
    for precision, products in (("tf32", "high"), ("fp32", "highest"), ("bf16", "highest")):
        machine = Compute(torch.device("cpu"), precision)
        with contextlib.suppress(KeyError), machine.settings(threads=before[2] + 1):
            assert now() == (products, precision == "tf32", before[2] + 1)
            raise KeyError
        assert now() == before
    with Compute(torch.device("cpu"), "fp32").settings():
        assert now()[2] == before[2]
