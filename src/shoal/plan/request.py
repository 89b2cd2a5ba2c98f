"""The request of a plan, and the checks of its single arguments."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, TypeAlias, final

import numpy as np

from shoal.data.order import Shuffle, steps
from shoal.errors import ConfigError, PlanError
from shoal.facts import DataFacts, MachineFacts
from shoal.registry import did_you_mean
from shoal.strategies.base import Strategy

Workers: TypeAlias = "int | str | tuple[int, int]"

# More processes than this on one machine's cores wait for memory, not for cores.
MOST_AUTO_WORKERS = 4
BATCH_SIZE = 32

LOWEST = {
    "batch_size": 1, "epochs": 0, "initial_epoch": 0, "seed": 0,
    "steps_per_epoch": 1, "max_restarts": 0, "standby": 0, "spares": 0, "threads": 1,
    "servers": 1,
}  # fmt: skip
"""Arguments that are whole numbers, with their minimum."""
MAY_BE_NONE = ("batch_size", "seed", "steps_per_epoch", "threads")
"""Those of them that need not be given."""
FLAGS = ("deterministic", "epoch_barrier")
VALIDATIONS = ("blocking", "async")
"""Whether workers wait while an epoch's weights are validated."""
ON_NAN = ("stop", "skip", "rollback")


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `fit` that decide the plan: the only list of them.

    `fit` fills it from its arguments, by name and with the same defaults. The plan has
    the decisions; an option that needs no decision is read from
    `plan.request`.

    Args:
        strategy: Strategy, as an object.
        workers: Processes, `(min, max)` or "auto": one a GPU, else one a usable core,
            at most 4, or as many as are fastest where each step is exchanged (`pace`);
            of a cluster one a node, or a slot.
        cluster: Name of a cluster, one of `known_clusters`; `fit` has looked it up.
        known_clusters: Names that `cluster` may have.
        batch_size: Samples per optimizer step: of all workers for gradient exchange, of
            each worker otherwise. Default None means 32, or a size that makes
            `steps_per_epoch` steps of the data, as in Keras.
        epochs: Number of the epoch before which training ends, as in Keras.
        initial_epoch: The epoch to start with.
        steps_per_epoch: Steps of `batch_size` samples that make an epoch; None: all.
        shuffle: True, False or "batch", as in Keras.
        seed: Seed of the order of samples, at least 0. `fit` draws one for None, which
            a plan takes as 0.
        deterministic: Refuse settings that cannot be repeated bit for bit.
        epoch_barrier: Whether workers wait at the end of an epoch for callbacks.
        max_restarts: Replacements of lost workers before the run stops.
        servers: Number of servers that share the weights, each with one part.
        standby: Number of standbys of each server, 0 or 1.
        spares: Waiting processes, everything imported, that replace lost workers.
        quorum: Number of workers that suffice for a round, or a share of them; see
            `choose_quorum`.
        collective: "server", "shared", "native" or "auto"; see `choose_collective`.
        codec: One of `exchanging.CODECS`.
        scale_rate: One of `rates.FACTORS`; None for the `usual_scale`.
        overlap: Whether workers compute while their vectors travel.
        on_nan: One of `ON_NAN`; None warns and continues.
        threads: Compute threads of each worker; None shares the cores.
        monitor: Metric of the best model, see `choose_monitor`; None for the loss.
        validation: One of `VALIDATIONS`.
        validation_freq: Epochs between validations, or the epochs; see `read_freq`.
        has_callbacks: Whether there are callbacks, which may log metrics of their own.

    Example:
        >>> from shoal.strategies import AllReduce
        >>> Request(strategy=AllReduce(), epochs=3).workers
        'auto'
    """

    strategy: Strategy
    workers: Workers = "auto"
    cluster: str = "local"
    known_clusters: tuple[str, ...] = ("local",)
    batch_size: int | None = None
    epochs: int = 1
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    shuffle: Shuffle = True
    seed: int | None = None
    deterministic: bool = False
    epoch_barrier: bool = True
    max_restarts: int = 3
    servers: int = 1
    standby: int = 0
    spares: int = 0
    quorum: float | None = None
    collective: str = "auto"
    codec: str = "float32"
    overlap: bool = False
    scale_rate: str | None = None
    on_nan: str | None = None
    threads: int | None = None
    monitor: str | None = None
    validation: str = "blocking"
    validation_freq: int | Sequence[int] = 1
    has_callbacks: bool = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Reads a request of a run; older ones were made before a default changed."""
        self.__dict__.update({"scale_rate": "none"} | state)

    def with_plain_numbers(self) -> Request:
        """Returns this with NumPy's whole numbers, unknown to JSON, as Python's."""
        workers: Any = self.workers
        if isinstance(workers, tuple):
            workers = tuple(map(plain, workers))
        names = [*LOWEST, "quorum"]
        changed = {name: plain(getattr(self, name)) for name in names}
        return replace(self, workers=plain(workers), **changed)


def plain(value: Any) -> Any:
    """Returns a whole number of any type as Python's own, other values unchanged.

    Example:
        >>> import numpy as np
        >>> plain(np.int64(3)), plain(None), plain(True)
        (3, None, True)
    """
    if isinstance(value, bool):  # a number in Python, but a mistake here
        return value
    return int(value) if isinstance(value, Integral) else value


def check_kinds(request: Request) -> None:
    """Refuses values of a wrong kind, before anything computes with them.

    Raises:
        ConfigError: A number is not whole or too small, or a flag is no flag.

    Example:
        >>> from shoal.strategies import AEASGD
        >>> check_kinds(Request(strategy=AEASGD(), epochs="3"))
        Traceback (most recent call last):
        shoal.errors.ConfigError: epochs='3' cannot be used. ...
    """
    for name, lowest in LOWEST.items():
        value = getattr(request, name)
        if value is not None or name not in MAY_BE_NONE:
            require_whole(name, value, lowest)
    for name in FLAGS:
        value = getattr(request, name)
        if not isinstance(value, (bool, np.bool_)):
            raise ConfigError(
                f"{name}={value!r} cannot be used. Expected True or False. "
                f"Correct it, or leave {name} out."
            )


def check(request: Request, data: DataFacts, machine: MachineFacts) -> tuple[int, int]:
    """Refuses single wrong arguments; returns the least and the most workers.

    Raises:
        ConfigError: A single argument is wrong.
        PlanError: There is no data.
    """
    if not isinstance(request.cluster, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"cluster={request.cluster!r} cannot be used. Expected the name of a "
            f"cluster: {', '.join(request.known_clusters)}. "
            "Leave it out to use this machine."
        )
    if request.cluster not in request.known_clusters:
        raise ConfigError(
            did_you_mean("cluster", request.cluster, request.known_clusters)
            + " One of your own hosts is known by its name once it is up: "
            "`shoal cluster up hosts.yaml`; `shoal cluster list` shows those that are."
        )
    check_kinds(request)
    if request.standby > 1:
        raise ConfigError(
            f"standby={request.standby} cannot be used. Expected 0 or 1: if one "
            "standby has taken over, another one is started. Use standby=1."
        )
    if not any(request.shuffle is word for word in (True, False)) and (
        request.shuffle != "batch"
    ):
        raise ConfigError(
            f"shuffle={request.shuffle!r} cannot be used. "
            "Expected True, False or 'batch'. Leave it out to shuffle."
        )
    if request.on_nan is not None and request.on_nan not in ON_NAN:
        raise ConfigError(
            f"on_nan={request.on_nan!r} cannot be used. Expected 'stop', 'skip', "
            "'rollback' or None. Leave it out to be warned and go on."
        )
    if request.validation not in VALIDATIONS:
        raise ConfigError(
            f"validation={request.validation!r} cannot be used. Expected 'blocking' or "
            "'async': a process of its own validates while the others train. "
            "Leave it out to have workers wait for it."
        )
    if data.rows < 1:
        raise PlanError(
            "the data has no samples. Expected at least one. "
            "Check how it was loaded or filtered."
        )
    limit = request.strategy.max_workers if request.workers == "auto" else None
    least, most = _worker_limits(request.workers, machine, request.has_callbacks)
    return least, most if limit is None else min(most, limit)


def require_whole(name: str, value: object, lowest: int) -> int:
    """Returns a whole number of any type as Python's own.

    Args:
        name: Name of the argument, for the message.
        value: The user's value.
        lowest: Minimum.

    Raises:
        ConfigError: It is not a whole number, or below the minimum.

    Example:
        >>> require_whole("epochs", 3, 0)
        3
    """
    number = plain(value)
    if type(number) is not int or number < lowest:
        raise ConfigError(
            f"{name}={value!r} cannot be used. Expected a whole number of at "
            f"least {lowest}. Correct it, or leave {name} out."
        )
    return number


def _worker_limits(
    workers: Workers, machine: MachineFacts, has_callbacks: bool
) -> tuple[int, int]:
    """Returns the least and the most workers for an argument."""
    if workers == "auto" and machine.slots is not None:
        # A callback may ask the engine for something, which needs a slot as well.
        return 1, max(1, machine.slots - has_callbacks)
    if workers == "auto" and machine.nodes:
        gpus = sum(node.gpus for node in machine.nodes)
        each = machine.gpus_each
        return 1, (int(gpus / each) if each else 0) or len(machine.nodes)
    if workers == "auto":
        return 1, len(machine.gpus) or min(machine.cores, MOST_AUTO_WORKERS)
    return read_workers(workers)


def read_workers(workers: object) -> tuple[int, int]:
    """Returns the least and the most for a number of workers or for `(min, max)`.

    Raises:
        ConfigError: It is neither.

    Example:
        >>> read_workers(3), read_workers((1, 4))
        ((3, 3), (1, 4))
    """
    given: Any = workers
    limits = tuple(map(plain, given if isinstance(given, tuple) else (given, given)))
    is_pair = len(limits) == 2 and all(type(n) is int for n in limits)
    if is_pair and limits[0] > limits[1] >= 1:
        raise ConfigError(
            f"workers={workers!r} cannot be used: the least is more than the most. "
            f"Expected (min, max). Pass workers=({limits[1]}, {limits[0]})."
        )
    if not is_pair or not 1 <= limits[0] <= limits[1]:
        raise ConfigError(
            f"workers={workers!r} cannot be used. Expected a number of at least 1, "
            "(min, max) or 'auto'. Leave it out to use this machine's cores."
        )
    return limits[0], limits[1]


def default_batch(rows: int, steps_per_epoch: int | None) -> int:
    """Returns Keras' default: 32, or a size that makes `steps_per_epoch` steps."""
    return steps(rows, steps_per_epoch) if steps_per_epoch else BATCH_SIZE


def models_of(strategy: Strategy, workers: int) -> int:
    """Returns the number of models: an ensemble's members, by default one a worker."""
    if not strategy.is_independent:
        return 1
    return int(getattr(strategy, "members", None) or workers)


def useful_workers(strategy: Strategy, rows: int, batch: int) -> int:
    """Returns the largest number of workers that all have rows in each step."""
    if strategy.is_independent:
        return models_of(strategy, sys.maxsize)
    if strategy.exchanges == "gradients":
        return min(rows, batch)
    return max(1, rows // batch)
