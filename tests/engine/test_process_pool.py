"""Processes that wait for their specs: what they are started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.engine.controller.process_pool import ProcessPool, WorkerEnvironment
from shoal.launchers.base import Preload


def told(pool: ProcessPool, token: str) -> str:
    text = Path(f"/proc/{pool._launcher.pid(token)}/environ").read_bytes()
    lines = text.decode().split("\0")
    return next(line for line in lines if line.startswith("CUDA_VISIBLE_DEVICES="))


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/environ").is_file(), reason="no /proc here")
def test_each_worker_sees_the_gpu_of_its_place_and_a_spare_one_takes_only_its_own():
    places = ({"CUDA_VISIBLE_DEVICES": "a"}, {"CUDA_VISIBLE_DEVICES": "b"})
    worker_environment = WorkerEnvironment(
        workers=2, threads=1, preload=Preload(), places=places
    )
    with_none = WorkerEnvironment(
        workers=0, threads=1, preload=Preload(), places=places
    )
    pool = ProcessPool(with_none)
    try:
        pool.change_environment(worker_environment)
        first = [pool.worker(hint) for hint in (0, 1)]
        pool.keep_spares(1)
        later = [pool.worker(hint) for hint in (1, 0)]
        tokens = [*first, *later]
        assert [told(pool, t)[-1] for t in tokens] == ["a", "b", "b", "a"]
        assert [pool._launcher._children[t].role.name for t in later] == [
            "worker-1", "worker-0"
        ]  # fmt: skip
        assert not pool._spares
    finally:
        pool.close()
