"""torch's DistributedDataParallel by gloo: `shoal launch --per-node 2 -- python ...`.

Nothing in here knows of Shoal: `init_process_group` reads what torchrun would set.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Fits a line. The model is gone before the group: its reducer holds the group."""
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()


def train() -> None:
    """All ranks end with the same weights."""
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(100):
        x = torch.randn(32, 2)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = model.module.weight.detach()
    sums = weights.clone()
    dist.all_reduce(sums)
    if not torch.allclose(sums, dist.get_world_size() * weights):
        raise SystemExit("ranks have different weights")
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
