"""The load of the machines of a run, folded from its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, cast, final

Values: TypeAlias = Mapping[str, Any]

CORES = "cores"
MEANS = ("percent", "watts")
"""Fields whose mean is reported; for the next ones the maximum."""
PEAKS = ("memory_mib", "celsius")
LAST = ("name", "percent", "memory_mib", "total_mib")


@final
class Use:
    """Adds samples one by one and keeps last, mean and maximum, in constant memory.

    Example:
        >>> use = Use()
        >>> for percent in (50, 100):
        ...     use.add({"node": "a", "percent": percent, "memory_mib": 7,
        ...              "total_mib": 9, "gpus": []})
        >>> [row] = use.rows()
        >>> row["what"], row["percent"], row["mean_percent"], row["most_memory_mib"]
        ('cores', 100, 75.0, 7)
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[str, str], _Part] = {}

    def add(self, event: Values) -> None:
        """Adds an event `node_used`."""
        node = str(event.get("node", ""))
        gpus = cast("Iterable[Values]", event.get("gpus") or ())
        for what, values in (
            (CORES, event),
            *((f"GPU {gpu.get('number')}", gpu) for gpu in gpus),
        ):
            self._parts.setdefault((node, what), _Part()).add(values)

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for the cores of each machine and for each GPU, by machine.

        Columns: node; what, "cores" or "GPU 0"; name of the model of a GPU; percent and
        memory_mib of the last sample; total_mib; mean_percent and mean_watts,
        most_memory_mib and most_celsius of all samples, if they are known.
        """
        return [
            {"node": node, "what": what, **self._parts[node, what].row()}
            for node, what in sorted(self._parts)
        ]


@final
class _Part:
    """The cores of a machine, or one of its GPUs."""

    def __init__(self) -> None:
        self._last: Values = {}
        self._sums: dict[str, tuple[int, float]] = {}
        self._peaks: dict[str, float] = {}

    def add(self, values: Values) -> None:
        self._last = values
        for name in MEANS:
            value = values.get(name)
            if value is not None:
                count, total = self._sums.get(name, (0, 0.0))
                self._sums[name] = count + 1, total + float(value)
        for name in PEAKS:
            value = values.get(name)
            if value is not None:
                self._peaks[name] = max(value, self._peaks.get(name, value))

    def row(self) -> dict[str, Any]:
        last = {name: self._last.get(name) for name in LAST}
        means = {
            f"mean_{name}": round(total / count, 1)
            for name, (count, total) in self._sums.items()
        }
        return {**last, **means, **{f"most_{n}": v for n, v in self._peaks.items()}}
