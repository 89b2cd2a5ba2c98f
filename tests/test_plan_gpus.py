"""Workers on GPUs: which one, how much of its memory, and what a plan says of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError, PlanError
from shoal.facts import DataFacts, Gpu, MachineFacts, ModelFacts
from shoal.plan import Plan, Request, resolve
from shoal.plan.collective import library_of
from shoal.plan.gpus import CONTEXT_MIB, LEAST_MIB, MOST, places
from shoal.strategies import AEASGD, AllReduce, Strategy
from shoal.training.early_start import worker_environment_of
from shoal.training.start_run import rules


def gpu(number: int = 0, total: int = 80_000, free: int = 80_000) -> Gpu:
    return Gpu(number=number, name=f"GPU-{number}", total_mib=total, free_mib=free)


def plan(
    *gpus: Gpu,
    strategy: Strategy | None = None,
    model: dict[str, Any] | None = None,
    **given_: Any,
) -> Plan:
    request = Request(
        strategy=strategy or AllReduce(), known_clusters=("local", "inline"), **given_
    )
    facts: dict[str, Any] = {"parameters": 9, "statistics": 0, "optimizer": "SGD"}
    return resolve(
        request,
        ModelFacts(name="m", **{**facts, **(model or {})}),
        DataFacts(rows=10_000, size_bytes=80_000),
        MachineFacts(cores=16, gpus=gpus),
    )


a_gpu = st.integers(2_000, 200_000).flatmap(
    lambda total: st.builds(
        gpu, total=st.just(total), free=st.integers(total // 10, total)
    )
)


@given(st.lists(a_gpu, min_size=1, max_size=9), st.integers(1, 20))
def test_shares_fit_into_free_memory(found: list[Gpu], workers: int):
    gpus = [gpu(n, g.total_mib, g.free_mib) for n, g in enumerate(found)]
    try:
        given_ = places(gpus, workers)
    except PlanError:
        crowd = Counter(worker % len(gpus) for worker in range(workers))
        least = CONTEXT_MIB + LEAST_MIB
        assert any(gpus[n].free_mib < crowd[n] * least for n in crowd)
        return
    assert len(given_) == workers
    crowds = Counter(place.number for place in given_)
    assert max(crowds.values()) - min(crowds.values()) <= 1
    assert len(crowds) == min(workers, len(gpus))  # shared only when there are too few
    for number, crowd in crowds.items():
        mine = [place for place in given_ if place.number == number]
        assert {(p.workers, p.name) for p in mine} == {(crowd, f"GPU-{number}")}
        taken = sum(p.share * gpus[number].total_mib + CONTEXT_MIB for p in mine)
        assert taken <= gpus[number].free_mib
        # In thousandths, to which shares are rounded: 18 * 0.05 is above 0.9.
        assert sum(round(1000 * p.share) for p in mine) <= round(1000 * MOST)
        assert all(p.share > 0 for p in mine)


def test_a_worker_for_each_gpu():
    found = plan(gpu(0), gpu(1))
    assert found.workers == 2
    assert [place.name for place in found.places] == ["GPU-0", "GPU-1"]
    text = found.explain()
    assert "jax on 2 GPUs, one worker each, which may take 90% of its memory" in text
    assert "warning" not in text
    assert found.to_json()["device"] == "gpu"


def test_several_workers_on_a_gpu_only_when_asked():
    found = plan(gpu(0), gpu(1), workers=3)
    assert [(p.number, p.share) for p in found.places] == [
        (0, 0.45), (1, 0.9), (0, 0.45)
    ]  # fmt: skip
    assert "2 GPUs, up to 2 workers each, which may take 45% to 90%" in found.explain()


def test_memory_that_this_process_holds_is_left_to_it():
    found = plan(gpu(0, free=20_000), gpu(1))
    assert [place.share for place in found.places] == [0.243, 0.9]
    [warning] = found.warnings
    assert "at most 24.3% of it" in warning
    assert "XLA_PYTHON_CLIENT_PREALLOCATE=false" in warning


def test_too_little_memory_is_refused_with_what_to_do():
    with pytest.raises(PlanError, match=r"GPU 1 has 1,500 of 80,000 MiB.*at least 2,0"):
        plan(gpu(0), gpu(1, free=1_500), workers=4)


def test_memory_of_unknown_size():
    assert [p.share for p in places([Gpu(number=0, name="0")], 2)] == [0.45, 0.45]


def test_workers_that_take_turns_have_no_gpus():
    assert plan(gpu(0), workers=2, cluster="inline").device == "cpu"


def test_a_plan_names_device_and_collective_on_the_cpu():
    found = plan(workers=2)
    own = "gradients averaged by the workers themselves, in shared memory"
    assert f"jax on cpu; {own}" in found.explain()
    server = plan(workers=2, collective="server").explain()
    assert "jax on cpu; gradients averaged through the server" in server
    assert found.to_json()["device"] == "cpu"
    weights = plan(workers=2, strategy=AEASGD()).explain()
    assert "jax on cpu; weights exchanged through the server" in weights
    assert "jax on cpu; nothing to average" in plan(workers=1).explain()


def test_a_plan_says_who_averages_and_refuses_what_cannot():
    model = {"backend": "torch"}
    found = plan(workers=2, collective="native", model=model)
    assert found.to_json()["collective"] == "native"
    assert "averaged by the workers themselves (gloo), thr" in found.explain()
    assert rules(found).has_groups
    assert plan(workers=1, collective="native", model=model).collective == "server"
    assert plan(workers=2, model=model).collective == "shared"  # on the CPU
    assert (rules(found).group_s, rules(plan(workers=2)).group_s) == (8.0, 0.0)
    for backend in ("jax", "tensorflow"):
        with pytest.raises(
            PlanError, match=rf"{backend} .* form a group: torch\. Leave"
        ):
            plan(workers=2, collective="native", model={"backend": backend})
    refused: list[dict[str, Any]] = [
        {"strategy": AEASGD()}, {"cluster": "inline"}, {"deterministic": True}
    ]  # fmt: skip
    for given_ in refused:
        with pytest.raises(PlanError, match="collective='native' is not available"):
            plan(workers=2, collective="native", model=model, **given_)
        assert plan(workers=2, model=model, **given_).collective == "server"
        with pytest.raises(PlanError, match="collective='shared' is not available"):
            plan(workers=2, collective="shared", model=model, **given_)
    with pytest.raises(ConfigError, match="Did you mean 'native'"):
        plan(workers=2, collective="natives")


def test_memory_is_shared_where_it_is_little():
    """What is long goes through the server, which reads it once for all."""

    def chosen(parameters: int, workers: int, **given_: Any) -> str:
        model = {"parameters": parameters}
        return plan(workers=workers, model=model, **given_).collective

    assert chosen(1 << 22, 2) == "shared"  # 16 MB each
    assert chosen((1 << 22) + 1, 2) == "server"
    assert chosen(1 << 22, 4) == "server"
    assert chosen(1 << 22, 4, collective="shared") == "shared"
    assert chosen(1 << 20, 2, servers=2) == "server"
    assert chosen(1 << 20, 1, collective="shared") == "server"


def test_gpus_average_by_nccl_where_each_has_its_worker():
    model = {"backend": "torch"}
    found = plan(gpu(0), gpu(1), model=model)
    assert (found.collective, library_of("torch", found.places)) == ("native", "nccl")
    assert "(nccl)" in found.explain()
    found = plan(gpu(0), gpu(1), workers=3, model=model)
    # Gloo adds in the memory of the machine, where the server is faster.
    assert (found.collective, library_of("torch", found.places)) == ("server", "gloo")
    assert plan(gpu(0), gpu(1)).collective == "server"  # JAX has no NCCL here
    assert plan(gpu(0), gpu(1), model=model, collective="server").places


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("jax", {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.45"}),
        ("tensorflow", {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}),
        (
            "torch",
            {
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
                "TORCH_NCCL_BLOCKING_WAIT": "1",
            },
        ),
    ],
)
def test_environment_variables_of_each_process(
    backend: str, said: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name in said:
        monkeypatch.delenv(name, raising=False)
    found = plan(gpu(0), workers=2).places
    worker_environment = worker_environment_of(backend, 2, 8, found)
    assert worker_environment.places == ({"CUDA_VISIBLE_DEVICES": "GPU-0", **said},) * 2
    for name in said:  # the user knows better
        monkeypatch.setenv(name, "mine")
    worker_environment = worker_environment_of(backend, 2, 8, found)
    assert worker_environment.places == ({"CUDA_VISIBLE_DEVICES": "GPU-0"},) * 2
