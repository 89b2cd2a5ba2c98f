"""torch's DistributedDataParallel: two processes, gloo, a core each.

`--batch` is that of each process. Rows lie in memory and are taken by index, which is
quicker than a DataLoader.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.entrants.told import answer, asked
from benchmarks.works import WORKS


class _Block(nn.Module):
    """A residual block: two convolutions, and one beside them."""

    def __init__(self, before: int, filters: int) -> None:
        super().__init__()
        self.beside = nn.Conv2d(before, filters, 1, 2, bias=False)
        self.first = nn.Conv2d(before, filters, 3, 2, 1, bias=False)
        self.second = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(filters) for _ in range(2)])

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y))) + self.beside(x)


class _Scale(nn.Module):
    """Bytes of images to numbers from -1 to 1, channels first."""

    def forward(self, x: Any) -> Any:
        return (x.float() / 127.5 - 1).permute(0, 3, 1, 2)


def _model(work: str) -> tuple[nn.Module, Any]:
    """Returns the model of a work, and makes its optimizer."""
    if work in ("higgs", "events"):
        model = nn.Sequential(
            nn.Linear(30, 600), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(600, 600), nn.ReLU(), nn.Dropout(0.2), nn.Linear(600, 2),
        )  # fmt: skip
        rate = WORKS[work].learning_rate or 0.001
        return model, lambda of: torch.optim.Adagrad(
            of, lr=rate, initial_accumulator_value=0.1, eps=1e-7
        )
    if work == "wide":
        wide = [nn.Linear(30, 1720), nn.ReLU()]
        wide += [part for _ in range(2) for part in (nn.Linear(1720, 1720), nn.ReLU())]
        bare = nn.Sequential(*wide, nn.Linear(1720, 2))
        return bare, lambda of: torch.optim.SGD(of, lr=0.01)
    model = nn.Sequential(
        _Scale(), nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        _Block(16, 16), _Block(16, 32), _Block(32, 64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    return model, lambda of: torch.optim.SGD(of, lr=0.01)


def _train(rank: int, given: Any, place: str, told: Any) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{place}", rank=rank, world_size=2
    )
    found = steps(rank, given)
    if rank == 0:
        told.put(found)
    torch.distributed.destroy_process_group()


def steps(rank: int, given: Any) -> tuple[list[float], list[float], float | None]:
    """Trains, as one of two processes that form a group already.

    Args:
        rank: Rank of this process.
        given: The parsed command line.

    Returns:
        Seconds and loss of each epoch, and when the accuracy was reached.
    """
    core = sorted(os.sched_getaffinity(0))[rank]
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = map(torch.from_numpy, WORKS[given.work].samples(given.rows))
    y = y.long()
    bare, make_optimizer = _model(given.work)
    model = DistributedDataParallel(bare)
    optimizer, loss_of = make_optimizer(model.parameters()), nn.CrossEntropyLoss()
    spans, losses, reached_at = list[float](), list[float](), None
    for epoch in range(given.epochs):
        began = time.perf_counter()
        order = torch.randperm(
            given.rows, generator=torch.Generator().manual_seed(epoch)
        )
        mine = order[rank::2]
        total, right = torch.zeros(()), torch.zeros(())
        for at in range(0, len(mine), given.batch):
            rows = mine[at : at + given.batch]
            found = model(x[rows])
            loss = loss_of(found, y[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                total += loss * len(rows)
                right += (found.argmax(1) == y[rows]).sum()
        sums = torch.stack([total, right])
        torch.distributed.all_reduce(sums)
        spans.append(time.perf_counter() - began)
        losses.append(float(sums[0]) / given.rows)
        if given.until is not None and _accuracy(model, given, rank) >= given.until:
            reached_at = time.time()
            break
    return spans, losses, reached_at


def _accuracy(model: Any, given: Any, rank: int) -> float:
    """Accuracy on the validation data, of which each process has a half."""
    x, y = WORKS[given.work].held_back()
    model.eval()
    with torch.no_grad():
        found = model(torch.from_numpy(x[rank::2])).argmax(1)
    model.train()
    right = (found == torch.from_numpy(y[rank::2])).sum().float()
    torch.distributed.all_reduce(right)
    return float(right) / len(y)


def main() -> None:
    """Runs both."""
    given = asked()
    told = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            _train, args=(given, f"{folder}/meeting", told), nprocs=2
        )
    spans, losses, reached_at = told.get()
    answer(spans, losses, reached_at=reached_at)


if __name__ == "__main__":
    main()
