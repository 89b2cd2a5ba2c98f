"""The parameters of a simulated run with a standby, and its faults."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import final

from tests.simulation import scenario
from tests.simulation.scenario import kind_of

KINDS = ("downpour", "aeasgd", "local_sgd", "all_reduce")
"""Strategies: asynchronous, elastic, of rounds, of gradients."""

ROUNDS = ("local_sgd", "all_reduce")
SERVERS = ("crash", "hang", "lose", "deafen", "split")
WORKERS = ("kill", "cut", "late", "jump")


@final
@dataclass(frozen=True, kw_only=True)
class Scenario(scenario.Scenario):
    """One simulated run of a strategy, whose name is its kind.

    Trouble: the leading server is killed ("crash") or stopped ("hang"), the standby is
    killed ("lose") or stopped ("deafen"), their connection breaks ("split"); a worker
    is killed ("kill"), its connection breaks ("cut"), one more joins ("late"), the
    clock jumps ("jump").

    Args:
        workers: Number of workers.
        rows: Samples of an epoch.
        epochs: Passes.
        batch_size: Samples of a step: of each worker, or of all together in all_reduce.
        period: Steps between exchanges.
        has_barrier: An epoch waits for the one before.
        tick_s: The most that the clock moves between two events.
        slow: Whose words are mostly passed over by the leader: those of the
            "controller", the "standby" or nobody.
        quorum: Workers of a round that are enough when the others are late, 0 for all;
            one worker is late again and again then.
        codec: Codec of vectors.
        has_overlap: Windows are computed while others are exchanged.
        is_summed: The loss is a sum over the batch, and every sample has a weight.
        alone_steps: Under all_reduce, steps of a window of a worker without a partner.
    """

    workers: int
    rows: int
    epochs: int
    batch_size: int
    period: int
    has_barrier: bool
    tick_s: float = 0.1
    slow: str = ""
    quorum: int = 0
    codec: str = "float32"
    has_overlap: bool = False
    is_summed: bool = False
    alone_steps: int = 0

    @property
    def is_counting(self) -> bool:
        """Whether the center counts the samples that came in."""
        return self.kind == "downpour" and self.codec == "float32"

    @property
    def has_steady_workers(self) -> bool:
        """Whether no fault hits the workers themselves, and none is late."""
        return not (self.quorum or any(self.trouble[name] for name in WORKERS))

    @property
    def is_repeatable(self) -> bool:
        """Whether the weights do not depend on the schedule, as with rounds."""
        is_round = self.kind in ROUNDS and self.has_barrier
        is_exact = self.codec == "float32"
        return is_round and is_exact and self.has_steady_workers


def draw(seed: int, kind: str | None = None) -> Scenario:
    """Draws a run and its faults.

    Args:
        seed: Any integer; the same one gives the same run.
        kind: One of `KINDS`, None to take the seed's.

    Example:
        >>> draw(6).kind, draw(6) == draw(6)
        ('local_sgd', True)
    """
    kind = kind_of(seed, kind, KINDS)
    choice = random.Random(f"succession {kind} {seed}")
    trouble = {name: choice.choice([0, 0, 1, 2]) for name in SERVERS}
    trouble["crash"] = choice.choice([1, 1, 2, 3])
    trouble["split"] = choice.choice([0, 1, 2, 3])  # the hardest to get right
    if choice.random() < 0.5:
        trouble |= {name: choice.choice([0, 0, 1, 2]) for name in WORKERS}
    drawn = Scenario(
        seed=seed,
        kind=kind,
        workers=choice.randint(1, 4),
        rows=choice.randint(4, 40),
        epochs=choice.randint(1, 3),
        batch_size=choice.randint(1, 6),
        period=1 if kind == "all_reduce" else choice.randint(1, 3),
        has_barrier=choice.random() < 0.7,
        trouble=Counter(trouble),
        tick_s=choice.choice([0.1, 0.1, 0.6]),
        slow=choice.choice(["", "", "controller", "standby"]),
    )
    if kind == "local_sgd" and choice.random() < 0.5:
        quorum = choice.randint(1, drawn.workers)
        drawn = replace(drawn, quorum=quorum)
    codec = choice.choice(["float32", "float32", "bfloat16", "int8"])
    has_overlap = choice.random() < 0.4
    apart = random.Random(f"summed {seed}").random()
    is_summed = kind == "all_reduce" and codec == "float32" and apart < 0.5
    is_alone = kind == "all_reduce" and not is_summed
    alone = random.Random(f"alone {seed}").choice([0, 1, 3]) if is_alone else 0
    return replace(
        drawn,
        codec=codec,
        has_overlap=has_overlap,
        is_summed=is_summed,
        alone_steps=alone,
    )
