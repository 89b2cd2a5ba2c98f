"""Laws of a single exchange: invariants under reordering, cutting and repetition.

This file decides laws 2 to 8 and 10. Each is a function of a strategy that raises
AssertionError; `laws.py` decides which strategies each concerns.
"""

from __future__ import annotations

import io

import numpy as np

from shoal.strategies import ADAG, DiLoCo, Downpour, Facts, LocalSGD, Strategy
from shoal.strategies.base import RoundStrategy, ServerStrategy
from shoal.testing.exchange import (
    SIZE,
    WORKERS,
    ExchangeCase,
    equal,
    near,
    same,
    sealed,
    serve,
)
from shoal.vectors import Vector


def conserves(strategy: Strategy) -> None:
    """An exchange keeps the sum of all local vectors and the center (to 1e-5)."""
    case = ExchangeCase(strategy=strategy)
    for _ in range(5):
        case.wander()
        before = case.center + np.sum(list(case.local.values()), axis=0)
        case.exchange()
        after = case.center + np.sum(list(case.local.values()), axis=0)
        near(after, before, "sum of local vectors and center")


def ignores_order(strategy: Strategy) -> None:
    """The order of arrival changes no bit; renaming workers changes one ulp at most."""
    samples = {0: 8.0, 1: 5.0, 2: 1.0}
    moved = {0: 2, 1: 0, 2: 1}
    cases = [ExchangeCase(strategy=strategy) for _ in range(3)]
    for case in cases:
        case.wander()
    messages, facts = cases[0].push(), cases[0].facts(samples)
    replies = cases[0].serve(messages, facts)
    late = dict(reversed(list(messages.items())))
    late_replies = cases[1].serve(late, facts)
    equal(cases[1].center, cases[0].center, "center under another arrival order")
    renamed = {moved[rank]: message for rank, message in messages.items()}
    weights = {moved[rank]: fact for rank, fact in facts.items()}
    renamed_replies = cases[2].serve(renamed, weights)
    np.testing.assert_array_max_ulp(cases[2].center, cases[0].center, maxulp=1)
    for rank in messages:
        equal(late_replies[rank], replies[rank], f"reply to rank {rank}")
        np.testing.assert_array_max_ulp(
            renamed_replies[moved[rank]], replies[rank], maxulp=1
        )


def repeats_nothing(strategy: Strategy) -> None:
    """A round of equal messages moves the center as one of them does (to 1e-5)."""
    many, one = ExchangeCase(strategy=strategy), ExchangeCase(strategy=strategy)
    many.wander()
    message, fact = many.push()[0], Facts(samples=8.0, workers=1)
    replies = many.serve(
        dict.fromkeys(range(4), message), dict.fromkeys(range(4), fact)
    )
    single = one.serve({0: message}, {0: fact})
    near(many.center, one.center, "center after four equal messages")
    for name in one.state:
        near(many.state[name], one.state[name], f"state {name!r}")
    if strategy.exchanges == "gradients":
        near(replies[3], single[0], "reply to four equal messages")


def equals_downpour(strategy: Strategy) -> None:
    """DynSGD with fresh messages and ADAG with one step a window are Downpour."""
    case = ExchangeCase(strategy=strategy)
    downpour = ExchangeCase(strategy=Downpour())
    for exchange in range(3):
        for each in (case, downpour):
            each.wander()
            messages = each.push(steps=1)
            fresh = {rank: Facts(staleness=1, updates=exchange) for rank in messages}
            each.serve(messages, fresh)
        equal(case.center, downpour.center, "center")


def equals_local_sgd(strategy: DiLoCo) -> None:
    """With outer learning rate 1 and no outer momentum it is local SGD (to 1e-5)."""
    plain = DiLoCo(outer_learning_rate=1.0, outer_momentum=0.0, period=strategy.period)
    cases = ExchangeCase(strategy=plain), ExchangeCase(strategy=LocalSGD())
    for samples in ({}, {0: 8.0, 1: 3.0, 2: 0.5}):
        for case in cases:
            case.wander()
            replies = case.serve(case.push(), case.facts(samples))
            for rank, reply in replies.items():
                case.local[rank] = case.anchor[rank] = reply
        near(cases[0].center, cases[1].center, "center")


def ones_stay_ones(strategy: Strategy) -> None:
    """If no worker moves, nothing moves: three epochs of ones give ones."""
    case = ExchangeCase(strategy=strategy)
    case.center[:] = 1
    ones = sealed(np.ones(SIZE, np.float32))
    case.local = case.anchor = dict.fromkeys(range(WORKERS), ones)
    for _ in range(3):
        if strategy.exchanges == "gradients":
            none = {rank: sealed(np.zeros(SIZE, np.float32)) for rank in case.local}
            replies = case.serve(none, case.facts())
            equal(replies[0], np.zeros(SIZE, np.float32), "mean of no gradients")
        else:
            case.exchange()
            for local in case.local.values():
                equal(local, ones, "local vector")
        equal(case.center, ones, "center")


def weightless_rounds_are_finite(strategy: Strategy) -> None:
    """Messages of no weight, as zero sample weights give, make no NaN."""
    case = ExchangeCase(strategy=strategy)
    case.wander()
    replies = case.serve(case.push(), case.facts(dict.fromkeys(range(WORKERS), 0.0)))
    for found in (case.center, *replies.values()):
        same(bool(np.isfinite(found).all()), True, "finite numbers")


def survives_checkpoint(strategy: Strategy) -> None:
    """A run restored from its saved state goes on bit for bit."""
    first, second = ExchangeCase(strategy=strategy), ExchangeCase(strategy=strategy)
    for case in (first, second):
        for _ in range(4):
            case.wander()
            case.exchange()
    arrays = {"center": second.center, **second.state}
    file = io.BytesIO()
    np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    file.seek(0)
    saved = np.load(file, allow_pickle=False)
    second.center = saved["center"]
    second.state = {name: saved[name] for name in second.state}
    for case in (first, second):
        for _ in range(4):
            case.wander()
            case.exchange()
    equal(second.center, first.center, "center after a restore")
    for name in first.state:
        equal(second.state[name], first.state[name], f"state {name!r}")


def changes_only_center_and_state(strategy: Strategy) -> None:
    """Messages and local vectors keep their bytes; state stays float32, in place."""
    case = ExchangeCase(strategy=strategy)
    state = dict(case.state)
    for name, vector in state.items():
        same(vector.dtype, np.dtype(np.float32), f"dtype of state {name!r}")
        same(vector.shape, (SIZE,), f"shape of state {name!r}")
    for _ in range(3):
        case.wander()
        kept = {rank: local.tobytes() for rank, local in case.local.items()}
        messages = case.push()
        sent = {rank: message.tobytes() for rank, message in messages.items()}
        replies = case.serve(messages, case.facts())
        for rank, message in messages.items():
            same(message.tobytes(), sent[rank], f"message of rank {rank} unchanged")
            same(message.dtype, np.dtype(np.float32), "dtype of a message")
            same(replies[rank].dtype, np.dtype(np.float32), "dtype of a reply")
            pulled = strategy.pull(
                case.local[rank], case.local[rank], case.anchor[rank], replies[rank]
            )
            for vector in pulled:
                same(vector.dtype, np.dtype(np.float32), "dtype after a pull")
        for rank, local in case.local.items():
            same(local.tobytes(), kept[rank], f"local vector of rank {rank} unchanged")
    same(set(case.state), set(state), "names in the state")
    for name, vector in state.items():
        same(case.state[name] is vector, True, f"state {name!r} changed in place")


def keeps_steps_taken_meanwhile(strategy: Strategy) -> None:
    """Steps taken during an exchange are kept by the pull (to 1e-5)."""
    case = ExchangeCase(strategy=strategy)
    case.wander()
    pushed, anchor = case.local[0], case.anchor[0]
    reply = case.serve(case.push(), case.facts())[0]
    taken = np.linspace(0.0, 0.5, SIZE, dtype=np.float32)
    at_rest, _ = strategy.pull(pushed, pushed, anchor, reply)
    moving, _ = strategy.pull(sealed(pushed + taken), pushed, anchor, reply)
    near(moving, at_rest + taken, "local vector")


def delivers_short_windows(strategy: Strategy) -> None:
    """A window of a single step is not lost on the way to the center."""
    for steps in (1, 2, max(1, strategy.period)):
        case = ExchangeCase(strategy=strategy, workers=1)
        case.wander()
        before = case.center.copy()
        reply = case.serve(case.push(steps), case.facts())[0]
        moved = reply if strategy.exchanges == "gradients" else case.center - before
        same(bool(np.all(moved != 0)), True, f"an effect of {steps} steps")


def divides_by_steps_taken(strategy: Strategy) -> None:
    """ADAG divides by the steps really taken, not by the period (to 1e-5)."""
    case = ExchangeCase(strategy=strategy)
    case.wander()
    change = case.local[0] - case.anchor[0]
    for steps in (1, 3, ADAG().period):
        near(case.push(steps)[0] * np.float32(steps), change, f"{steps} steps")


def writes_in_place_the_same(strategy: Strategy) -> None:
    """Verbs that write in place equal those that return their result."""
    returned, written = ExchangeCase(strategy=strategy), ExchangeCase(strategy=strategy)
    for _ in range(4):
        returned.wander()
        written.wander()
        messages, facts = returned.push(), returned.facts()
        replies = returned.serve(messages, facts)
        for rank, message in messages.items():
            reply = replies[rank]
            if isinstance(strategy, ServerStrategy):
                reply = np.full(SIZE, np.nan, np.float32)
                strategy.apply_into(
                    reply, written.center, written.state, message, facts[rank]
                )
                equal(reply, replies[rank], "reply written in place")
            local, anchor = returned.local[rank], returned.anchor[rank].copy()
            out = np.full(SIZE, np.nan, np.float32)
            strategy.pull_into(out, local, anchor, sealed(reply.copy()))
            pulled = strategy.pull(local, local, returned.anchor[rank], replies[rank])
            equal(out, pulled[0], "local vector written in place")
            if strategy.needs_anchor:
                equal(anchor, pulled[1], "anchor changed in place")
        if isinstance(strategy, ServerStrategy):
            equal(written.center, returned.center, "center")
            for name in returned.state:
                equal(written.state[name], returned.state[name], f"state {name!r}")


def needs_no_anchor(strategy: Strategy) -> None:
    """Messages and local vectors are the same with the start of the steps as anchor."""
    case = ExchangeCase(strategy=strategy)
    for _ in range(4):
        start = dict(case.local)
        case.wander()
        messages, replies = case.push(), case.serve(case.push(), case.facts())
        for rank, local in case.local.items():
            message = strategy.push(local, start[rank], 2)
            equal(message, messages[rank], "message without an anchor")
            pulled, _ = strategy.pull(local, local, start[rank], replies[rank])
            kept = strategy.pull(local, local, case.anchor[rank], replies[rank])
            equal(pulled, kept[0], "local vector without an anchor")
            case.local[rank], case.anchor[rank] = (sealed(v.copy()) for v in kept)


def changes_of_zero_change_nothing(strategy: Strategy) -> None:
    """If a message or a reply is a change, one of zeros changes nothing."""
    case = ExchangeCase(strategy=strategy)
    case.wander()
    none = sealed(np.zeros(SIZE, np.float32))
    if strategy.message_is_change:
        before = case.center.copy()
        replies = case.serve(dict.fromkeys(case.local, none), case.facts())
        equal(case.center, before, "center after messages of zeros")
        if strategy.reply_is_change:
            for rank, reply in replies.items():
                equal(reply, none, f"reply to rank {rank}")
    if strategy.reply_is_change and strategy.exchanges == "weights":
        for rank, local in case.local.items():
            pulled, _ = strategy.pull(local, local, case.anchor[rank], none)
            equal(pulled, local, "local vector after a reply of zeros")


def works_on_segments(strategy: Strategy) -> None:
    """All verbs on two halves equal them on the whole, bit for bit."""
    whole, halves = ExchangeCase(strategy=strategy), ExchangeCase(strategy=strategy)
    cut = (slice(0, 5), slice(5, SIZE))
    for _ in range(4):
        whole.wander()
        halves.wander()
        facts = whole.facts()
        messages, replies = whole.push(), whole.serve(whole.push(), whole.facts())
        for part in cut:
            parts = {rank: v[part] for rank, v in messages.items()}
            state = {name: v[part] for name, v in halves.state.items()}
            answers = serve(strategy, halves.center[part], state, parts, facts)
            for rank, local in whole.local.items():
                anchor, piece = whole.anchor[rank], local[part]
                pushed = strategy.push(piece, anchor[part], 2)
                equal(pushed, messages[rank][part], "message of a segment")
                equal(answers[rank], replies[rank][part], "reply to a segment")
                pulled = strategy.pull(piece, piece, anchor[part], answers[rank])
                full = strategy.pull(local, local, anchor, replies[rank])
                equal(pulled[0], full[0][part], "local vector of a segment")
                equal(pulled[1], full[1][part], "anchor of a segment")
        equal(halves.center, whole.center, "center")
        for name in whole.state:
            equal(halves.state[name], whole.state[name], f"state {name!r}")
    _shares_no_memory(strategy)


def _shares_no_memory(strategy: Strategy) -> None:
    """Two segments may be processed at once: results share no memory."""
    case, half = ExchangeCase(strategy=strategy), SIZE // 2
    case.wander()
    messages, facts = case.push(), case.facts()

    def verbs(part: slice) -> dict[str, Vector]:
        center, local, anchor = case.center[part], case.local[0], case.anchor[0]
        state = {name: v[part] for name, v in case.state.items()}
        parts = {rank: v[part] for rank, v in messages.items()}
        pushed = strategy.push(local[part], anchor[part], 2)
        if isinstance(strategy, RoundStrategy):
            reply = strategy.merge(center, state, parts, facts)[0]
        elif isinstance(strategy, ServerStrategy):
            reply = strategy.apply(center, state, parts[0], facts[0])
        else:
            return {"message of": pushed}
        pulled = strategy.pull(local[part], local[part], anchor[part], sealed(reply))
        names = ("message of", "reply to", "local vector of", "anchor of")
        return dict(zip(names, (pushed, reply, *pulled), strict=True))

    found = verbs(slice(0, half))
    copies = {name: vector.copy() for name, vector in found.items()}
    verbs(slice(half, 2 * half))
    for name, vector in found.items():
        equal(vector, copies[name], f"{name} a segment when another is worked on")
