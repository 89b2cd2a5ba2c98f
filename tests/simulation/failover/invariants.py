"""Checks of what a simulated run with a standby leaves behind."""

from __future__ import annotations

import numpy as np

from tests.simulation.failover.controller import SimController
from tests.simulation.failover.scenario import Scenario
from tests.simulation.violation import require

EXACT = 1e-3  # means of whole numbers, in float32


def look_at_end(controller: SimController, scenario: Scenario) -> None:
    """Checks all reports that the controller got."""
    for epoch in range(scenario.epochs):
        end = controller.ends[epoch]
        books = [end.rows, int(end.metrics[1])]
        if not controller.has_rolled_back:  # else some was told and then undone
            told = [r.samples for r in controller.records if r.epoch == epoch]
            books.append(sum(told))
        is_whole = books == [scenario.rows] * len(books)
        require(is_whole, "each sample is committed exactly once", epoch, books)
    if not controller.has_rolled_back:
        versions = [record.version for record in controller.records]
        require(versions == sorted(versions), "versions only grow", versions)
    if scenario.is_counting:
        last = list(controller.ends.values())[-1].vector
        rows = scenario.rows * scenario.epochs
        require(bool(np.all(last == rows)), "the center has all of it", last, rows)
    if scenario.is_summed:
        for epoch, end in controller.ends.items():
            more = end.vector - (epoch + 1)
            # Without a barrier steps of the next epoch may be in what is published.
            most = 0 if scenario.has_barrier or epoch + 1 == scenario.epochs else 1
            is_even = bool(np.all((more > -EXACT) & (more < most + EXACT)))
            require(is_even, "every sample counts once an epoch", epoch, end.vector)


def look_at_weights(disturbed: SimController, calm: SimController) -> None:
    """Checks that rounds gave the weights of a run without faults."""
    for epoch, end in disturbed.ends.items():
        is_same = end.vector.tobytes() == calm.ends[epoch].vector.tobytes()
        require(is_same, "nobody can tell from the weights", epoch)
