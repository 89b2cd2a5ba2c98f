"""A sequencer through JSON and back, at any moment of any run."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given, settings

from shoal.engine.coordination.instructions import Refuse
from shoal.engine.coordination.sequencer import Sequencer
from tests.simulation.protocol import ProtocolRun, draw
from tests.simulation.protocol.server import SimServer
from tests.simulation.protocol.store import Center

SEEDS = st.integers(0, 1 << 32)
MOMENTS = st.integers(0, 250)


def stopped(seed: int, moment: int) -> tuple[SimServer, Center]:
    """A server in the middle of a run, and the center of its checkpoint."""
    scenario = draw(seed)
    trouble = Counter({**scenario.trouble, "crash": 0})
    run = ProtocolRun(replace(scenario, trouble=trouble))
    for _ in range(moment):
        if not run.step():
            break
    server = run.server
    assert server is not None
    return (
        server,
        server.snapshot if server.rules.exchanges_gradients else server.center,
    )


@settings(max_examples=150)
@given(SEEDS, MOMENTS, st.integers(1, 6))
def test_a_new_server_knows_the_commits_and_no_worker(
    seed: int, moment: int, workers: int
) -> None:
    server, center = stopped(seed, moment)
    old = server.sequencer
    document = json.loads(json.dumps(old.to_json()))
    assert document == old.to_json()
    new = Sequencer.from_json(replace(server.rules, workers=workers), document)
    assert new.lineage == old.lineage + 1
    assert new.version <= old.version
    assert new.is_halted == old.is_halted
    assert (new.members, new.publisher, new.expected) == ({}, None, workers)
    assert new.ledger.epochs == old.ledger.epochs
    steps = 0
    for epoch in new.ledger.epochs:
        done = new.ledger.committed(epoch)
        assert done == center.committed(epoch)
        steps += -(-done // server.rules.batch)
        whole = done if new.is_halted else server.rules.rows_of(epoch)
        assert done + new.ledger.free(epoch) == whole or epoch not in new.ledger.active
    assert new.clock == steps


@settings(max_examples=100)
@given(SEEDS, MOMENTS)
def test_the_checkpoint_of_a_new_server_differs_by_its_lineage_only(
    seed: int, moment: int
) -> None:
    server, _ = stopped(seed, moment)
    once = Sequencer.from_json(server.rules, server.sequencer.to_json()).to_json()
    twice = Sequencer.from_json(server.rules, once).to_json()
    assert twice == {**once, "lineage": once["lineage"] + 1}


@settings(max_examples=100)
@given(SEEDS, MOMENTS)
def test_no_earlier_incarnation_is_given_again(seed: int, moment: int) -> None:
    server, _ = stopped(seed, moment)
    old = server.sequencer
    places = [(line.rank, line.incarnation) for line in server.peers.values()]
    new = Sequencer.from_json(server.rules, old.to_json())
    joined = [new.join(rank) for rank in range(server.most_rank + 1)]
    for rank, incarnation in places:
        assert incarnation < joined[rank].incarnation
        assert isinstance(new.need(rank, incarnation)[0], Refuse)
