"""What a run has recorded of each worker, in the form of dist-keras.

This file decides what an iteration is: the optimizer steps of a worker so far. A record
is one exchange, so it covers the steps since the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from shoal.errors import ConfigError
from shoal.runs.events import EXCHANGE_FIELDS, read_events, unpack_exchanges
from shoal.runs.folder import Folder

WorkerRecord: TypeAlias = dict[str, Any]
"""`worker_id`, `iteration`, `timestamp` (Unix seconds), the loss and metrics."""


def history_of(run: Any) -> list[WorkerRecord]:
    """Reads the records of a run, in their order.

    Args:
        run: The run.

    Raises:
        ConfigError: The run keeps nothing.
    """
    if not run.url:
        raise ConfigError(
            "records of workers were asked for, and run=False keeps none. Expected a "
            "run with a folder. Leave run out, or pass a path."
        )
    run.flush()
    return list(worker_records(read_events(Folder.at(run.url))))


def worker_records(events: Iterable[Mapping[str, Any]]) -> Iterator[WorkerRecord]:
    """Returns a record for each exchange.

    Args:
        events: Events of a run, oldest first.

    Example:
        >>> packed = {"columns": ["rank", "steps", "t", "loss"],
        ...           "rows": [[0, 5, 1.0, 0.7], [0, 5, 2.0, 0.6]]}
        >>> event = {"kind": "exchanges", "time": 9.0, **packed}
        >>> for record in worker_records([event]):
        ...     print(record)
        {'worker_id': 0, 'iteration': 5, 'timestamp': 8.0, 'loss': 0.7}
        {'worker_id': 0, 'iteration': 10, 'timestamp': 9.0, 'loss': 0.6}
    """
    steps: dict[int, int] = {}
    for event in events:
        if event.get("kind") != "exchanges":
            continue
        found = list(unpack_exchanges(event))
        # Times of exchanges are a server's own; the last one was recorded at once.
        began = float(event.get("time", 0.0)) - float(found[-1]["t"] if found else 0)
        for one in found:
            rank = int(one["rank"])
            steps[rank] = steps.get(rank, 0) + int(one.get("steps") or 0)
            metrics = {
                name: value
                for name, value in one.items()
                if (name == "loss" or name not in EXCHANGE_FIELDS) and value is not None
            }
            yield {
                "worker_id": rank, "iteration": steps[rank],
                "timestamp": began + float(one["t"]), **metrics,
            }  # fmt: skip


def history_executors_average(history: Sequence[WorkerRecord]) -> list[WorkerRecord]:
    """Averages the n-th records of all workers, for each n that a worker has reached.

    Args:
        history: Records of workers, as `get_history` returns them.

    Returns:
        Records with the largest `iteration`, the number of `workers`, and the means.

    Example:
        >>> one = {"worker_id": 0, "iteration": 5, "timestamp": 1.0, "loss": 1.0}
        >>> other = {"worker_id": 1, "iteration": 4, "timestamp": 2.0, "loss": 2.0}
        >>> history_executors_average([one, other])
        [{'iteration': 5, 'workers': 2, 'loss': 1.5}]
    """
    counts: dict[int, int] = {}
    groups: dict[int, list[WorkerRecord]] = {}
    for record in history:
        number = counts[record["worker_id"]] = counts.get(record["worker_id"], 0) + 1
        groups.setdefault(number, []).append(record)
    return [_mean(groups[number]) for number in sorted(groups)]


def _mean(records: Sequence[WorkerRecord]) -> WorkerRecord:
    names = {name: None for record in records for name in record}
    found: WorkerRecord = {
        "iteration": max(record["iteration"] for record in records),
        "workers": len(records),
    }
    for name in names:
        if name not in ("worker_id", "iteration", "timestamp"):
            values = [record[name] for record in records if name in record]
            found[name] = sum(values) / len(values)
    return found
