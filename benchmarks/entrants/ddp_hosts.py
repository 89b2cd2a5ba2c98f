"""torch's DistributedDataParallel with each process on a host of its own, as root.

Hosts are those of `shoal_hosts`: network namespaces behind cables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.entrants.told import answer, asked
from benchmarks.works import ROOT

sys.path.insert(0, str(ROOT / "src"))
PORT = "29500"  # free: the namespace has no other programs


def _member() -> None:
    """One process, started below."""
    import argparse

    import torch.distributed

    from benchmarks.entrants.torch_ddp import steps

    given = argparse.Namespace(**json.loads(sys.argv[2]))
    rank = int(sys.argv[3])
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    spans, losses, _ = steps(rank, given)
    torch.distributed.destroy_process_group()
    print(json.dumps([spans, losses]))


def main() -> None:
    """Runs both."""
    if sys.argv[1:2] == ["--member"]:
        _member()
        return
    from tests.support.hosts import Cable, Hosts

    given = asked(
        lambda parser: parser.add_argument("--arguments"),
        lambda parser: parser.add_argument("--mbit", type=float, default=0.0),
        lambda parser: parser.add_argument("--delay", type=float, default=0.0),
    )
    cable = Cable(mbit=given.mbit, delay_s=given.delay) if given.mbit else None
    hosts = Hosts(2, cable)
    first = hosts.address.rpartition(".")[0] + ".2"  # address of the first host
    env: dict[str, Any] = {
        **os.environ, "MASTER_ADDR": first, "MASTER_PORT": PORT,
        "GLOO_SOCKET_IFNAME": "eth0",
    }  # fmt: skip
    words = [sys.executable, "-m", __spec__.name, "--member", json.dumps(vars(given))]
    try:
        both = [
            subprocess.Popen(
                ["ip", "netns", "exec", name, *words, str(rank)],
                env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True,
            )
            for rank, name in enumerate(hosts.names)
        ]  # fmt: skip
        said = [process.communicate()[0] for process in both]
    finally:
        hosts.close()
    spans, losses = json.loads(said[0].splitlines()[-1])
    answer(spans, losses)


if __name__ == "__main__":
    main()
