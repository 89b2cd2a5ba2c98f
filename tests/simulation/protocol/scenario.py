"""The parameters of a simulated run and its faults, all drawn from one number."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any, final

from shoal.engine.coordination.instructions import Rules
from shoal.engine.coordination.restart_policy import RestartPolicy
from tests.simulation import scenario
from tests.simulation.scenario import kind_of

MOST_ROWS = 60
"""Of an epoch."""

KINDS: dict[str, dict[str, Any]] = {
    "asynchronous": {},
    "elastic": {"is_elastic": True},
    "rounds": {"is_rounds": True},
    "elastic rounds": {"is_rounds": True, "is_elastic": True},
    "gang": {"is_rounds": True, "exchanges_gradients": True, "window": 1},
    "small gang": {"is_rounds": True, "exchanges_gradients": True, "window": 1},
}
"""Rules of each kind; `all_reduce`, which was called gang, has the most to go wrong,
so it is drawn twice. Names of kinds are part of seeds, and stay."""


@final
@dataclass(frozen=True)
class EvenChunks:
    """Borders of chunks of one size.

    Example:
        >>> EvenChunks(30)(0)
        (0, 30)
    """

    rows: int

    def __call__(self, epoch: int) -> tuple[int, ...]:
        """The positions where chunks begin; there is none behind the last sample."""
        return tuple(range(0, MOST_ROWS, self.rows))


@final
@dataclass(frozen=True, kw_only=True)
class Scenario(scenario.Scenario):
    """One simulated run of rules of a kind, a key of `KINDS`.

    Trouble: a worker dies ("kill"), its connection breaks ("cut"), the server dies
    alone ("crash"), everything dies and the run is resumed ("blackout"), a worker joins
    uninvited ("late"), a push is sent again because its answer was lost ("repeat"), one
    of the past comes back ("stray"), the run is told to stop ("halt").

    Args:
        rules: Rules of the run.
        policy: Policy of the controller for lost workers.
        stop_after: The controller ends the run before this epoch, None for not.
        rejoins: Chance that a worker that lost its connection joins again; otherwise
            its process ends.
        checkpoints: Chance of a checkpoint at each event.
        damages: Chance that the newest checkpoint cannot be read.
        slowness: Chance that a slow worker, every third, is passed over.
        haste: Chance that the time of grace can be over at an event.
        is_summed: The loss is a sum over the batch.
    """

    rules: Rules
    policy: RestartPolicy
    stop_after: int | None = None
    rejoins: float = 0.0
    checkpoints: float = 0.0
    damages: float = 0.0
    slowness: float = 0.0
    haste: float = 0.0
    is_summed: bool = False


def draw(seed: int, kind: str | None = None) -> Scenario:
    """Draws a run, its failures and its schedule.

    Args:
        seed: Any integer; the same one gives the same run.
        kind: A key of `KINDS`, None to take the seed's.

    Example:
        >>> draw(7).kind, draw(7) == draw(7)
        ('elastic', True)
    """
    kind = kind_of(seed, kind, list(KINDS))
    choice = random.Random(f"{kind} {seed}")
    first = choice.choice([0, 0, 0, 2])
    return Scenario(
        seed=seed,
        kind=kind,
        rules=_rules(choice, kind, first),
        policy=RestartPolicy(
            max_restarts=choice.choice([0, 1, 3, 8]), min_workers=choice.randint(1, 2)
        ),
        trouble=Counter(
            kill=choice.choice([0, 0, 1, 3, 8]),
            cut=choice.choice([0, 0, 1, 3]),
            crash=choice.choice([0, 1, 1, 2, 4]),
            blackout=choice.choice([0, 0, 1, 2]),
            late=choice.choice([0, 0, 1, 3]),
            repeat=choice.choice([0, 3]),
            stray=choice.choice([0, 5]),
            halt=int(choice.random() < 0.2),
        ),
        stop_after=first + 1 if choice.random() < 0.15 else None,
        rejoins=choice.choice([0.0, 0.5, 1.0]),
        checkpoints=choice.choice([0.005, 0.02, 0.1]),
        damages=choice.choice([0.0, 0.0, 0.3]),
        slowness=choice.choice([0.0, 0.8]),
        haste=choice.choice([0.05, 0.3, 1.0]),
        # Drawn apart, so that seeds stay what they were.
        is_summed="gang" in kind and random.Random(f"{kind} {seed} sum").random() < 0.7,
    )


def _rules(choice: random.Random, kind: str, first: int) -> Rules:
    most_rows, most_batch = (12, 3) if kind.startswith("small") else (MOST_ROWS, 9)
    sizes = choice.choice([1, 1, 2])
    fields: dict[str, Any] = {
        "epoch_rows": tuple(choice.randint(1, most_rows) for _ in range(sizes)),
        "first_epoch": first,
        "epochs": first + choice.randint(1, 4),
        "workers": choice.randint(1, 5),
        "batch": choice.randint(1, most_batch),
        "window": choice.randint(1, 5),
        "is_rounds": False,
        "exchanges_gradients": False,
        "is_elastic": False,
        "has_barrier": choice.random() < 0.6,
    }
    fields |= KINDS[kind]
    if fields["is_rounds"] and not fields["exchanges_gradients"]:
        fields["quorum"] = choice.choice([0, 1, 2, 3])
    # The field had another name when these seeds were first drawn.
    text = f"{fields} borders".replace("exchanges_gradients", "is_gang")
    apart = random.Random(text)
    if fields["exchanges_gradients"]:
        fields["has_groups"] = apart.random() < 0.5
        fields["alone_steps"] = apart.choice([0, 0, 1, 3])
    if not fields["exchanges_gradients"] and apart.random() < 0.4:
        fields["borders"] = EvenChunks(apart.randint(1, most_rows))
    return Rules(**fields)
