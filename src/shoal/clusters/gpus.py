"""The GPUs of this machine, as listed by `nvidia-smi`.

This file decides which of them may be used: those in CUDA_VISIBLE_DEVICES, if
the installed backend can compute on them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from shoal.backends import BACKENDS
from shoal.facts import Gpu

PROC = Path("/proc")
TOOL = "nvidia-smi"
QUERY = ("index", "uuid", "memory.total", "memory.free")
LIMIT_S = 30.0  # loading the driver takes seconds


def reaches_gpus(backend: str) -> bool:
    """Whether an installed backend of Keras is built to compute on NVIDIA GPUs."""
    entry = BACKENDS.get(backend)
    return entry is not None and any(_has(*part) for part in entry.gpu_parts)


def _has(path: str, text: str) -> bool:
    """Whether a file of an installed package exists, and contains a text."""
    package, _, rest = path.partition("/")
    spec = find_spec(package)
    folders = (spec and spec.submodule_search_locations) or []
    files = [file for folder in folders if (file := Path(folder, rest)).is_file()]
    return any(not text or text in file.read_text() for file in files)


def usable_gpus(proc: Path = PROC) -> tuple[Gpu, ...]:
    """Returns the NVIDIA GPUs that this process may use, with their free memory.

    Without `nvidia-smi`, the driver only gives their number.

    Args:
        proc: Mount point of process information.
    """
    listed = _listed() or _installed(proc)
    return visible_gpus(listed, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _listed() -> list[Gpu]:
    tool = shutil.which(TOOL)
    if tool is None:
        return []
    command = [tool, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=LIMIT_S
        )
        return parse_gpus(done.stdout)
    return []


def _installed(proc: Path) -> list[Gpu]:
    try:
        count = len(list((proc / "driver/nvidia/gpus").iterdir()))
    except OSError:
        return []
    return [Gpu(number=number, name=str(number)) for number in range(count)]


def parse_gpus(text: str) -> list[Gpu]:
    r"""Parses the output of `nvidia-smi`; other lines are ignored.

    Args:
        text: Lines of `QUERY`, in MiB.

    Example:
        >>> parse_gpus("0, GPU-5f, 81559, 80994\nNo more devices\n")
        [Gpu(number=0, name='GPU-5f', total_mib=81559, free_mib=80994)]
    """
    found: list[Gpu] = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(QUERY) and parts[0].isdecimal():
            # "[N/A]" if GPU and CPU share their memory, or the GPU is partitioned.
            known = all(part.isdecimal() for part in parts[2:])
            total, free = map(int, parts[2:]) if known else (0, 0)
            number, name = int(parts[0]), parts[1]
            gpu = Gpu(number=number, name=name, total_mib=total, free_mib=free)
            found.append(gpu)
    return found


def visible_gpus(listed: Sequence[Gpu], words: str | None) -> tuple[Gpu, ...]:
    """Returns a machine's GPUs that CUDA_VISIBLE_DEVICES selects, in its order.

    They keep their names of that variable: CUDA may number them in another order than
    nvidia-smi.

    Args:
        listed: All GPUs of the machine.
        words: Value of the variable, None if it is not set.

    Example:
        >>> gpus = [Gpu(number=0, name="GPU-5f"), Gpu(number=1, name="GPU-a0")]
        >>> [gpu.number for gpu in visible_gpus(gpus, "1,0")]
        [1, 0]
        >>> visible_gpus(gpus, "-1")
        ()
    """
    if words is None:
        return tuple(listed)
    found: list[Gpu] = []
    for word in (word.strip() for word in words.split(",")):
        gpu = _named(listed, word)
        if gpu is None or gpu in found:
            break  # an unknown one hides all after it, by CUDA's own rule
        found.append(gpu)
    return tuple(found)


def _named(listed: Sequence[Gpu], word: str) -> Gpu | None:
    if word.startswith("MIG-") and listed:  # a part of one, whose memory is unknown
        return Gpu(number=listed[0].number, name=word)
    for gpu in listed:
        is_uuid = word.startswith("GPU-") and gpu.name.startswith(word)
        if is_uuid or word == str(gpu.number):
            return replace(gpu, name=word)
    return None
