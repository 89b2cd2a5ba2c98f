"""Ray Train: torch's DistributedDataParallel on two workers of this machine.

The loop is that of `torch_ddp`; Ray starts its processes and binds them together.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from benchmarks.entrants.told import answer, asked
from benchmarks.works import ROOT


def _loop(config: dict[str, Any]) -> None:
    """One worker."""
    import argparse

    from ray import train

    from benchmarks.entrants.torch_ddp import steps

    rank = train.get_context().get_world_rank()
    spans, losses, _ = steps(rank, argparse.Namespace(**config["given"]))
    if rank == 0:
        Path(config["told"]).write_text(json.dumps([spans, losses]))


def main() -> None:
    """Trains."""
    given = asked()
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        ray.init(
            num_cpus=3, include_dashboard=False, _temp_dir=folder, log_to_driver=False,
            logging_level="ERROR", _node_ip_address="127.0.0.1",
            runtime_env={"env_vars": {"PYTHONPATH": paths}},
        )  # fmt: skip
        told = Path(folder, "told")
        trainer = TorchTrainer(
            _loop,
            train_loop_config={"given": vars(given), "told": str(told)},
            scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
            run_config=RunConfig(storage_path=folder),
        )
        trainer.fit()
        spans, losses = json.loads(told.read_text())
        ray.shutdown()
    answer(spans, losses)


if __name__ == "__main__":
    main()
