"""The environment in which a run was computed: versions, machine, source and memory, as its result keeps them."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

import mdcg
from mdcg.errors import MdcgError
from mdcg.files import shown
from mdcg.stored import Whole
from mdcg.train.precision import Compute

TIMEOUT = 5  # seconds that git may take


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")  # a later version may have added fields


class Versions(_Part):
    """The versions of mdcg and of what it runs on."""

    mdcg: str | None = None
    torch: str | None = None
    numpy: str | None = None
    python: str | None = None


class Hardware(_Part):
    """The machine of a run, memory in bytes. Without a `gpu` the run was computed on the CPU."""

    cpu: str | None = None
    cores: Whole | None = None
    ram: Whole | None = None
    threads: Whole | None = None
    gpu: str | None = None
    gpu_memory: Whole | None = None


class GitRevision(_Part):
    """The git revision that mdcg ran from; a package that is installed has none."""

    revision: str
    uncommitted: bool


class Environment(_Part):
    """The environment of a run; what an older version did not note is None."""

    versions: Versions = Versions()
    platform: str | None = None
    hardware: Hardware = Hardware()
    source: GitRevision | None = None
    precision: str | None = None
    peak_memory: Whole | None = None  # bytes of the GPU, or of the process on a CPU, up to the end of the run
    finished: str | None = None  # UTC, ISO 8601

    @property
    def device(self) -> str | None:
        """The name of the device, as a reader would say it."""
        hardware = self.hardware
        if hardware.gpu is not None:
            return hardware.gpu
        return (
            None
            if hardware.threads is None
            else f"cpu ({hardware.threads} thread{'s' if hardware.threads > 1 else ''})"
        )

    def items(self) -> Iterator[tuple[str, str]]:
        """The lines of a table, one for each thing that is known."""
        hardware, source = self.hardware, self.source
        size = f", {_size(hardware.gpu_memory)}" if hardware.gpu_memory else ""
        cpu = [hardware.cpu, hardware.cores and f"{hardware.cores} cores", hardware.ram and _size(hardware.ram)]
        lines = {
            **self.versions.model_dump(),
            "platform": self.platform,
            "device": self.device and self.device + size,
            "cpu": ", ".join(str(part) for part in cpu if part),
            "source": source and source.revision[:12] + (" and uncommitted changes" if source.uncommitted else ""),
            "precision": self.precision,
            "peak memory": self.peak_memory and _size(self.peak_memory),
            "finished": self.finished,
        }
        return ((name, str(text)) for name, text in lines.items() if text)


def environment(compute: Compute, threads: int | None = None) -> Environment:
    """The environment of this process, now that a run is finished, which took so many threads if not all."""
    return Environment(
        versions=Versions(
            mdcg=mdcg.__version__, torch=torch.__version__, numpy=np.__version__, python=platform.python_version()
        ),
        platform=platform.platform(),
        hardware=_hardware(compute.device, threads or torch.get_num_threads()),
        source=own_revision(),
        precision=compute.precision,
        peak_memory=_peak_memory(compute.device),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def gpu_name(compute: Compute) -> str | None:
    return torch.cuda.get_device_name(compute.device) if compute.device.type == "cuda" else None


@cache
def own_revision() -> GitRevision | None:
    """The revision of the files that mdcg was loaded from, asked for once: they may be edited while runs train.

    Where they were copied without their repository, $MDCG_REVISION says it, as git describe printed it there.
    """
    told = os.environ.get("MDCG_REVISION", "")
    if not told:
        return revision_of(Path(mdcg.__file__).parent)
    found = re.fullmatch("([0-9a-f]{7,40})(-dirty)?", told)
    if found is None:
        raise MdcgError(
            f"MDCG_REVISION is '{shown(told, 60)}', which is no git revision; give what 'git describe --always "
            '--abbrev=40 --dirty --exclude "*"\' prints.'
        )
    return GitRevision(revision=found[1], uncommitted=bool(found[2]))


def revision_of(folder: Path) -> GitRevision | None:
    """The revision of a package's folder; None where git does not know its files, or is not there."""
    tracked = _git(folder, "ls-files", "--error-unmatch", "__init__.py")  # a .venv inside a checkout is not
    revision = tracked and _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--", ".")
    return GitRevision(revision=revision, uncommitted=bool(changes)) if revision and changes is not None else None


def _git(folder: Path, *words: str) -> str | None:
    """Ask git, and return its answer as it is; None where it cannot tell."""
    # Variables of a hook that calls us would point git elsewhere; and it is not to lock what others use.
    variables = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        asked = subprocess.run(
            ["git", "-C", str(folder), *words],
            env=variables | {"GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            timeout=TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.decode(errors="replace").strip()


def _hardware(device: torch.device, threads: int) -> Hardware:
    found = Hardware(cpu=_cpu_name(), cores=os.cpu_count(), ram=_ram(), threads=threads)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found.gpu, found.gpu_memory = properties.name, properties.total_memory
    return found


@cache
def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine() or None


def _ram() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # the system does not say
        return None


def _peak_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows does not have it
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # Linux counts in KiB


def _size(count: int) -> str:
    """Write a number of bytes for readers.

    >>> _size(3_435_973_836)
    '3.2 GiB'
    """
    return f"{count / 2**30:.1f} GiB"
