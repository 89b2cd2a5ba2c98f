"""What a strategy is: a frozen value and pure functions on segments of flat vectors.

This file decides the contract between the mathematics of an algorithm and the
engine that carries its messages. Nothing here knows a socket, a clock, a
layer or a backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import ClassVar, Literal, TypeAlias

from shoal.errors import ConfigError
from shoal.vectors import Vector

State: TypeAlias = dict[str, Vector]

_KINDS: tuple[tuple[type, type, str], ...] = (
    (bool, bool, "True or False"),
    (int, Integral, "a whole number"),
    (float, Real, "a number"),
    (str, str, "text"),
)
"""What a field may be, by the type of its default; others are not checked here."""


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
        rows: Samples that the message was learnt from, by which the statistics beside
            it weigh; None where that is `samples`.
    """

    workers: int = 1
    staleness: int = 1
    steps: int = 1
    samples: float = 1.0
    updates: int = 0
    rows: float | None = None


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """How workers agree. Subclass `ServerStrategy` or `RoundStrategy`, not this.

    All verbs work element by element on segments of contiguous float32 vectors:
    the engine may call them on the whole vector or on each of its slices, `merge` on
    two of them at once from two threads, and the result is the same. Scalars come
    only from `Facts` and from the fields. Arguments named `message`, `local`,
    `anchor`, `pushed` and `reply` are never changed in place; `center` and the
    vectors of `state` are, and are never replaced. What a verb returns may be one of
    its arguments, `center` included: the caller copies it out. It is never memory
    that another call writes to.

    Args:
        period: Local optimizer steps between two exchanges, at least 1, or 0 for
            a whole epoch. Tau in the papers.

    Raises:
        ConfigError: `period` is not a whole number of at least 0, or another
            field is not of the kind of its default.
    """

    name: ClassVar[str]
    """The word a user types, equal to the module's name."""
    exchanges: ClassVar[Literal["weights", "gradients"]] = "weights"
    """What `push` is given as `local`: weights, or the sum of a step's gradients."""
    max_workers: ClassVar[int | None] = None
    """Upper limit on workers, None for no limit."""
    is_asynchronous: ClassVar[bool]
    """Messages are applied when they arrive; False: merged in rounds."""
    is_independent: ClassVar[bool] = False
    """Every worker trains a model of its own; nothing is exchanged between them."""
    is_elastic: ClassVar[bool] = False
    """Whether a worker keeps weights of its own after an exchange, where others adopt
    the center. One that comes too late, or comes back, then keeps them too."""
    needs_anchor: ClassVar[bool] = True
    """False where the anchor is, bit by bit, where the worker's steps began, or where
    no verb looks at it: workers then keep one vector less, and `pull_into` is not to
    change it. A law holds those to it that say so."""
    message_is_change: ClassVar[bool] = False
    """Whether a message of zeros says that nothing moved, as gradients and deltas do;
    False: it says where something is. So codecs know what may be added up."""
    reply_is_change: ClassVar[bool] = False
    """The same of replies."""
    promises: ClassVar[frozenset[str]] = frozenset()
    """Laws `shoal.testing` holds it to beyond those for all: "plain" (one worker,
    period 1 equals plain training), "conserves" (the sum of local vectors and
    center is kept by an exchange), "mean" (a round weighs workers as equals)."""

    period: int = 1
    """Local optimizer steps between two exchanges (tau); 0 means a whole epoch."""

    def __post_init__(self) -> None:
        for field in fields(self):
            for default, kind, words in _KINDS:
                if isinstance(field.default, default):
                    value = getattr(self, field.name)
                    # True is an int to Python, but never a period.
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
    def local_momentum(self) -> float:
        """Look-ahead Nesterov momentum the worker wraps around its optimizer."""
        return 0.0

    def init(self, size: int) -> State:
        """Returns the server's state: named float32 vectors of length `size`."""
        del size
        return {}

    @abstractmethod
    def push(self, local: Vector, anchor: Vector, steps: int) -> Vector:
        """Returns the message a worker sends after `steps` local steps."""

    @abstractmethod
    def pull(
        self, local: Vector, pushed: Vector, anchor: Vector, reply: Vector
    ) -> tuple[Vector, Vector]:
        """Returns the worker's new (local, anchor) after a reply.

        `pushed` is the local vector that was sent: steps taken while the exchange
        was under way are `local - pushed`, and stay.
        """

    def pull_into(
        self, out: Vector, local: Vector, anchor: Vector, reply: Vector
    ) -> None:
        """Does what `pull` does after a wait: writes to `out`, and to `anchor`.

        Override it where the result can be made in `out` at once; a law asks that it
        is the same, bit by bit.

        Args:
            out: The new local vector; no memory of the others.
            local: What was sent.
            anchor: Changed in place, by strategies that need one.
            reply: Of the server.
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
        is stable below 1 / (period * staleness * L). Strategies that bear more say so.

        Args:
            curvature: Largest eigenvalue L of a mini-batch's Hessian.
            staleness: Largest staleness of a message, at least 1.
        """
        return 1.0 / (max(1, self.period) * staleness * curvature)

    def rate_scaling(self, workers: int) -> tuple[float, int]:
        """Returns the factor of the learning rate, and the epochs until it is reached.

        The rate grows linearly from the unscaled one, step by step.

        Args:
            workers: That train.
        """
        del workers
        return 1.0, 0

    def warnings(self, *, workers: int, exchanges_per_epoch: float) -> list[str]:
        """Returns what `plan` should warn about; raises PlanError to refuse."""
        del workers
        if 0 < exchanges_per_epoch < 5 and self.period > 1:
            return [
                f"{self.name} exchanges only {exchanges_per_epoch:.1f} times per "
                f"worker and epoch (period={self.period}); at least 5 are advised. "
                "Choose a smaller period."
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
        once from two threads: what it keeps lies in `center` and `state`.
        """

    def apply_into(
        self, reply: Vector, center: Vector, state: State, message: Vector, facts: Facts
    ) -> None:
        """Does what `apply` does, and writes the reply to `reply`.

        Override it where the reply can be made there at once; a law asks that it is
        the same, bit by bit. `reply` is no memory of the others.
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
        once from two threads: what it keeps lies in `center` and `state`.
        """


def adopt_reply(local: Vector, pushed: Vector, reply: Vector) -> tuple[Vector, Vector]:
    """Adopts R, keeping steps taken meanwhile: W := R + (W - P), A := R."""
    if local is pushed:
        return reply, reply
    meanwhile: Vector = local - pushed
    return reply + meanwhile, reply
