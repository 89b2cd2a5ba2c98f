"""The end of a job, and the process that ended it."""

from __future__ import annotations

from shoal.foreign.course import course
from shoal.foreign.job import Node, ProcessGroup, Shape

JOB = ProcessGroup.of(
    [Node(name="a", address="a")],
    Shape(per_node=2, ps=1, has_chief=True, has_evaluator=True),
)


def test_the_first_that_fails_ends_it() -> None:
    assert course(JOB, {}, ()).failed is None
    found = course(JOB, {"worker-0": 3}, ())
    assert found.failed is not None
    assert found.failed.name == "worker-0"


def test_a_server_may_fail_too() -> None:
    found = course(JOB, {"chief": 0, "ps-0": 1}, ())
    assert found.failed is not None


def test_a_process_told_to_end_has_not_failed() -> None:
    codes = {"chief": 0, "worker-0": 0, "ps-0": 143}
    assert course(JOB, codes, {"ps-0"}).failed is None


def test_with_parameter_servers_the_chief_decides() -> None:
    assert not course(JOB, {"worker-0": 0}, ()).is_over
    found = course(JOB, {"chief": 0}, ())
    assert found.is_over
    assert [each.name for each in found.unneeded] == ["worker-0", "ps-0"]


def test_without_a_chief_all_workers_decide() -> None:
    job = ProcessGroup.of([Node(name="a", address="a")], Shape(per_node=2, ps=1))
    assert not course(job, {"worker-0": 0}, ()).is_over
    found = course(job, {"worker-0": 0, "worker-1": 0}, ())
    assert [each.name for each in found.unneeded] == ["ps-0"]


def test_without_parameter_servers_a_chief_is_one_of_all() -> None:
    shape = Shape(per_node=2, has_chief=True)
    job = ProcessGroup.of([Node(name="a", address="a")], shape)
    assert not course(job, {"chief": 0}, ()).is_over
    assert course(job, {"chief": 0, "worker-0": 0}, ()).is_over
