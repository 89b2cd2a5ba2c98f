"""The strategy interface: a frozen value and pure functions on segments of vectors.

This file decides the contract between the mathematics of an algorithm and the
engine that carries its messages. Nothing here uses a socket, a clock, a
layer or a backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import ClassVar, Literal, TypeAlias, final

from shoal.errors import ConfigError
from shoal.vectors import Vector

State: TypeAlias = dict[str, Vector]

_KINDS: tuple[tuple[type, type, str], ...] = (
    (bool, bool, "True or False"),
    (int, Integral, "a whole number"),
    (float, Real, "a number"),
    (str, str, "text"),
)
"""Allowed types of a field, by the type of its default; others are not checked."""


LEAST_EXCHANGES = 3
"""Exchanges of a worker in an epoch below which workers drift apart."""


@final
class UsualPeriod(int):
    """A default period: `plan` takes a shorter one where an epoch has few steps.

    A period that a user names is a plain number, and is obeyed.

    Example:
        >>> UsualPeriod(50).within(1_000), UsualPeriod(50).within(80)
        (50, 26)
    """

    def within(self, steps: int) -> int:
        """Returns this, or less so that an epoch has at least three exchanges.

        Args:
            steps: Steps of a worker in an epoch.
        """
        most = max(1, steps // LEAST_EXCHANGES)
        return self if self <= most else most


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Plain numbers about one message, the only scalars a strategy may use.

    Args:
        workers: Live workers of the run, at least 1.
        staleness: Server updates since the sender's last pull, plus 1.
        steps: Optimizer steps the message covers.
        samples: Weight of the message in a mean: its samples, or their summed
            sample weights where the loss divides by those.
        updates: Messages (asynchronous) or rounds applied before this one.
        rows: Samples from which the message was computed, the weight of its
            statistics; None if that is `samples`.
    """

    workers: int = 1
    staleness: int = 1
    steps: int = 1
    samples: float = 1.0
    updates: int = 0
    rows: float | None = None


@dataclass(frozen=True, kw_only=True)
class Overshoot:
    """Why a rule moves the center too far with many workers, and what prevents it.

    Args:
        why: What the strategy does, as the rest of a sentence that begins with its
            name.
        is_known: Whether it is known to fail with so many workers, whatever their
            optimizer.
        rate: Factor of the learning rate that prevents it, above 0.
        advice: What else prevents it, as an order.
        lost: Workers -> points of accuracy that were lost where the workers' optimizer
            normalises its steps: MNIST with Adam, in docs, "Learning quality".
    """

    why: str
    is_known: bool
    rate: float
    advice: str
    lost: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """The rule by which workers agree. Subclass `ServerStrategy` or `RoundStrategy`.

    All verbs work element by element on segments of contiguous float32 vectors:
    the engine may call them on the whole vector or on each of its slices, `merge` on
    two of them at once from two threads, and the result is the same. Scalars come
    only from `Facts` and from the fields. Arguments named `message`, `local`,
    `anchor`, `pushed` and `reply` are never changed in place; `center` and the
    vectors of `state` are, and are never replaced. The result of a verb may be one of
    its arguments, `center` included: the caller copies it. It is never memory
    that another call writes to.

    Args:
        period: Local optimizer steps between two exchanges, at least 1, or 0 for
            a whole epoch. Tau in the papers.

    Raises:
        ConfigError: `period` is not a whole number of at least 0, or another
            field has another type than its default.
    """

    name: ClassVar[str]
    """The strategy's name for users, equal to the module's name."""
    exchanges: ClassVar[Literal["weights", "gradients"]] = "weights"
    """The `local` argument of `push`: weights, or the sum of a step's gradients."""
    max_workers: ClassVar[int | None] = None
    """Upper limit on workers, None for no limit."""
    is_asynchronous: ClassVar[bool]
    """Messages are applied when they arrive; False: merged in rounds."""
    is_independent: ClassVar[bool] = False
    """Whether every worker trains a model of its own, without exchange between them."""
    is_elastic: ClassVar[bool] = False
    """Whether a worker keeps weights of its own after an exchange, where others adopt
    the center. A worker that is late or comes back then keeps them too."""
    needs_anchor: ClassVar[bool] = True
    """False if the anchor is, bit by bit, the start of the worker's steps, or if
    no verb reads it: workers then keep one vector less, and `pull_into` must not
    change it. A law checks the strategies that declare this."""
    message_is_change: ClassVar[bool] = False
    """Whether a message of zeros means no change, as for gradients and deltas;
    False: it is a position. Codecs need to know which messages may be added up."""
    reply_is_change: ClassVar[bool] = False
    """Whether a reply of zeros means no change."""
    scales_rate_from: ClassVar[int | None] = None
    """The least period with which the learning rate of an adaptive optimizer grows with
    the square root of the number of workers by default; None: it never does. For rules
    that average workers, which is a step of a batch that many times as large."""
    moves_beyond: ClassVar[bool] = False
    """Whether the center moves elsewhere than its workers have been, by a momentum of
    its own or by several changes one after the other: moving averages of layers, which
    are means of the workers', then fit other weights than those of the center."""
    promises: ClassVar[frozenset[str]] = frozenset()
    """Laws of `shoal.testing` for this strategy besides those for all: "plain" (one
    worker, period 1 equals plain training), "conserves" (an exchange keeps the sum of
    local vectors and center), "mean" (a round weighs workers equally)."""

    period: int = 1
    """Local optimizer steps between two exchanges (tau); 0 means a whole epoch. A
    default that is a `UsualPeriod` becomes shorter in short epochs."""

    def __post_init__(self) -> None:
        for field in fields(self):
            for default, kind, words in _KINDS:
                if isinstance(field.default, default):
                    value = getattr(self, field.name)
                    # True is an int in Python, but never a period.
                    is_flag = isinstance(value, bool) and kind is not bool
                    is_valid = isinstance(value, kind) and not is_flag
                    self._require(is_valid, field.name, f"is {words}")
                    break
        self._require(self.period >= 0, "period", "is at least 1, or 0 for an epoch")

    def _require(self, is_valid: bool, field: str, expected: str) -> None:
        """Raises ConfigError about a field unless `is_valid`."""
        if not is_valid:
            raise ConfigError(
                f"{self.name} cannot work with {field}={getattr(self, field)!r}. "
                f"Expected: {field} {expected}. "
                f"Leave {field} out to use the default."
            )

    @property
    def scales_rate(self) -> bool:
        """Returns whether the learning rate follows the workers by default."""
        least = self.scales_rate_from
        return least is not None and not 0 < self.period < least

    @property
    def local_momentum(self) -> float:
        """Returns the look-ahead Nesterov momentum around the worker's optimizer."""
        return 0.0

    def init(self, size: int) -> State:
        """Returns the server's state: named float32 vectors of length `size`."""
        del size
        return {}

    @abstractmethod
    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        """Returns the message of a worker after `steps` local steps."""

    @abstractmethod
    def pull(
        self, local: Vector, pushed: Vector, anchor: Vector, reply: Vector
    ) -> tuple[Vector, Vector]:
        """Returns the worker's new (local, anchor) after a reply.

        `pushed` is the local vector that was sent: steps taken during the exchange
        are `local - pushed`, and stay.
        """

    def pull_into(
        self, out: Vector, local: Vector, anchor: Vector, reply: Vector
    ) -> None:
        """Does what `pull` does after a wait: writes to `out`, and to `anchor`.

        Override it if the result can be made in `out` directly; a law checks that it
        is the same, bit by bit.

        Args:
            out: The new local vector; it shares no memory with the others.
            local: The vector that was sent.
            anchor: Changed in place, by strategies that need one.
            reply: Reply of the server.
        """
        out[:], after = self.pull(local, local, anchor, reply)
        if self.needs_anchor and after is not anchor:
            anchor[:] = after

    def adopt(self, center: Vector) -> Vector:
        """Returns the local vector of a worker that joins, or starts over."""
        return center.copy()

    def learning_rate_bound(self, *, curvature: float, staleness: int = 1) -> float:
        """Returns the SGD learning rate below which least squares is solved.

        Plain gradient descent is stable below 2 / L. A sum of deltas of `period`
        steps that arrive `staleness` updates late is a delayed gradient step, and
        is stable below 1 / (period * staleness * L). Strategies that tolerate more
        override it.

        Args:
            curvature: Largest eigenvalue L of a mini-batch's Hessian.
            staleness: Largest staleness of a message, at least 1.
        """
        return 1.0 / (max(1, self.period) * staleness * curvature)

    def rate_scaling(self, workers: int) -> tuple[float, int]:
        """Returns the factor of the learning rate, and the epochs until it is reached.

        The rate grows linearly from the unscaled one, step by step.

        Args:
            workers: Number of workers that train.
        """
        del workers
        return 1.0, 0

    def overshoot(self, workers: int) -> Overshoot | None:
        """Returns why so many workers may move the center too far; None for most.

        A run of a strategy that answers is watched, and says so if it diverges.

        Args:
            workers: Number of workers that train.
        """
        del workers
        return None

    def period_within(self, steps: int, workers: int) -> int:
        """Returns the steps between two exchanges, at least 1.

        Args:
            steps: Steps of a worker in an epoch, at least 1.
            workers: Number of workers.

        Example:
            >>> from shoal.strategies import get
            >>> [get(s).period_within(30, 4) for s in ("diloco", "diloco:period=50")]
            [10, 50]
        """
        del workers
        period = self.period
        within = period.within(steps) if isinstance(period, UsualPeriod) else period
        return within or steps

    def warnings(self, *, workers: int, exchanges_per_epoch: float) -> list[str]:
        """Returns warnings for `plan`; raises PlanError to refuse."""
        del workers
        if 0 < exchanges_per_epoch < LEAST_EXCHANGES and self.period > 1:
            advised = max(1, int(self.period * exchanges_per_epoch / LEAST_EXCHANGES))
            return [
                f"{self.name} exchanges only {exchanges_per_epoch:.1f} times per "
                f"worker and epoch (period={self.period}); at least {LEAST_EXCHANGES} "
                f"are advised. Choose period={advised}, or fewer workers."
            ]
        return []


@dataclass(frozen=True, kw_only=True)
class ServerStrategy(Strategy):
    """Asynchronous: the server applies each message when it arrives."""

    is_asynchronous: ClassVar[bool] = True

    @abstractmethod
    def apply(
        self, center: Vector, state: State, message: Vector, facts: Facts
    ) -> Vector:
        """Changes `center` and `state` in place and returns the reply.

        A server calls it for one segment of the vectors after the other, or for two at
        once from two threads: all that it keeps is in `center` and `state`.
        """

    def apply_into(
        self, reply: Vector, center: Vector, state: State, message: Vector, facts: Facts
    ) -> None:
        """Does what `apply` does, and writes the reply to `reply`.

        Override it if the reply can be made there directly; a law checks that it is
        the same, bit by bit. `reply` shares no memory with the others.
        """
        reply[:] = self.apply(center, state, message, facts)


@dataclass(frozen=True, kw_only=True)
class RoundStrategy(Strategy):
    """Synchronous: the server merges one message of each worker of a round.

    Sums run in rank order and in float64, so that the order of arrival changes
    nothing. `merge` may return the same reply object for every rank.
    """

    is_asynchronous: ClassVar[bool] = False

    @abstractmethod
    def merge(
        self,
        center: Vector,
        state: State,
        messages: Mapping[int, Vector],
        facts: Mapping[int, Facts],
    ) -> dict[int, Vector]:
        """Changes `center` and `state` in place and returns a reply per rank.

        A server calls it for one segment of the vectors after the other, or for two at
        once from two threads: all that it keeps is in `center` and `state`.
        """


def adopt_reply(local: Vector, pushed: Vector, reply: Vector) -> tuple[Vector, Vector]:
    """Adopts R, keeping steps taken meanwhile: W := R + (W - P), A := R."""
    if local is pushed:
        return reply, reply
    meanwhile: Vector = local - pushed
    return reply + meanwhile, reply
