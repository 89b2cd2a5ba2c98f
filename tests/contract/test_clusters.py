"""A kind of cluster is a class and one line of metadata, tried with a toy one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.clusters.finding import find_cluster, names, registry
from shoal.errors import ConfigError, PlanError
from tests.contract.test_plugin import install, site
from tests.habits.cases import data, make_model

__all__ = ["site"]

TOY = '''
"""Workers of a toy cluster: processes of this machine, started by its own launcher."""
from contextlib import contextmanager
from typing import ClassVar

from shoal.clusters.base import Allocation, Cluster
from shoal.clusters.local import read_machine
from shoal.launchers.process import ProcessLauncher

opened = []


class Toy(Cluster):
    name: ClassVar[str] = "toy"

    def look(self, backend):
        return read_machine(backend)

    @contextmanager
    def open(self, asked):
        opened.append(asked.most)
        yield Allocation(
            workers=asked.most,
            host="127.0.0.1",
            open_launcher=lambda blob: ProcessLauncher((blob.descriptor,)),
        )
        opened.append("closed")
'''
LINE = "toy = shoal_toy:Toy"


@pytest.fixture
def toy(site: Path) -> Any:
    """The module of the toy cluster, which is installed."""
    install(site, "shoal_toy", LINE, TOY, group="shoal.clusters")
    assert "toy" in names()
    assert "shoal_toy" not in sys.modules
    registry.load("toy")
    return sys.modules["shoal_toy"]


def test_a_cluster_is_found_by_its_name(toy: Any) -> None:
    assert isinstance(find_cluster("toy"), toy.Toy)
    assert registry.source("toy") == "shoal_toy"
    plan = shoal.plan(make_model(), *data(64), cluster="toy", workers=2)
    assert plan.request.cluster == "toy"


def test_an_unknown_name_is_refused_with_the_nearest(toy: Any) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'toy'"):
        shoal.plan(make_model(), *data(64), cluster="toyy")


def test_a_cluster_that_takes_no_jobs_says_so(toy: Any) -> None:
    with pytest.raises(ConfigError, match="cluster 'toy' takes no jobs"):
        toy.Toy().jobs()


def test_independent_members_do_not_run_there(toy: Any) -> None:
    with pytest.raises(PlanError, match="does not run on cluster='toy'"):
        shoal.plan(make_model(), *data(64), cluster=toy.Toy(), strategy="ensemble")


@pytest.mark.process
@pytest.mark.parametrize("by_name", [True, False])
def test_fit_trains_on_its_workers(toy: Any, by_name: bool) -> None:
    x, y = data(96)
    usual: dict[str, Any] = {
        "batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0
    }  # fmt: skip
    ours, plain = make_model(), make_model()
    cluster = "toy" if by_name else toy.Toy()
    shoal.fit(ours, x, y, cluster=cluster, workers=2, run=False, **usual)
    assert toy.opened == [2, "closed"]
    plain.fit(x, y, **usual)
    for mine, other in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5)
