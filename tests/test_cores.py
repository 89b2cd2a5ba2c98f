"""Which cores workers have to themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.launchers.cores import shares_of_cores

COUNT = st.integers(1, 6)


@given(COUNT, COUNT)
def test_a_run_that_has_the_machine_shares_it_out(workers: int, threads: int) -> None:
    cores = [3 * n + 1 for n in range(workers * threads)]
    shares = shares_of_cores(workers, threads, cores)
    assert [core for share in shares for core in share] == cores
    assert {len(share) for share in shares} == {threads}


@given(COUNT, COUNT, st.integers(0, 40))
def test_any_other_run_is_left_to_the_scheduler(
    workers: int, threads: int, cores: int
) -> None:
    if workers * threads != cores:
        found = shares_of_cores(workers, threads, list(range(cores)))
        assert found == [()] * workers
