from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError, PlanError
from shoal.facts import Chunking, Gpu, Multiplications, NodeFacts
from shoal.plan import (
    DataFacts,
    EnvironmentVariables,
    MachineFacts,
    ModelFacts,
    Plan,
    Request,
    environment,
    resolve,
)
from shoal.strategies import (
    AEASGD,
    EAMSGD,
    EASGD,
    AllReduce,
    AsyncDiLoCo,
    Averaging,
    DiLoCo,
    Downpour,
    DynSGD,
    Ensemble,
    LocalSGD,
    Single,
    Strategy,
    get,
)
from shoal.training.start_run import rules

MODEL = ModelFacts(name="mlp", parameters=1000, statistics=24, optimizer="Adagrad")
ADAM = replace(MODEL, optimizer="Adam", normalising=("Adam",), is_adaptive=True)
DATA = DataFacts(rows=10_000, size_bytes=1_000_000)
MACHINE = MachineFacts(cores=8)
GPUS = (Gpu(number=0, name="0"), Gpu(number=1, name="1"))


def plan(
    strategy: Strategy | None = None,
    *,
    model: ModelFacts = MODEL,
    data: DataFacts = DATA,
    machine: MachineFacts = MACHINE,
    **arguments: Any,
) -> Plan:
    request = Request(strategy=strategy or AllReduce(), **arguments)
    return resolve(request, model, data, machine)


@pytest.mark.parametrize(
    ("machine", "workers", "threads"),
    [
        (MachineFacts(cores=1), 1, 1),
        (MachineFacts(cores=3), 3, 1),
        (MachineFacts(cores=9), 4, 2),
        (MachineFacts(cores=16, gpus=GPUS), 2, 8),
    ],
)
def test_auto_workers(machine: MachineFacts, workers: int, threads: int):
    found = plan(LocalSGD(), machine=machine)
    assert (found.workers, found.min_workers, found.threads) == (workers, 1, threads)
    assert found.alone_steps == 0


def of_work(**work: int) -> ModelFacts:
    return replace(MODEL, multiplications=Multiplications(**work))


@pytest.mark.parametrize(
    ("model", "batch_size", "workers"),
    [
        (MODEL, 64, 1),  # what it computes is not known
        (of_work(dense=380_000), 64, 1),
        (of_work(dense=380_000), 256, 1),
        (of_work(convolved=4_000_000), 64, 2),
        (of_work(convolved=4_000_000), 1, 1),
        (of_work(recurrent=250_000), 32, 1),
        (of_work(recurrent=250_000), 4096, 2),
    ],
)
def test_auto_takes_several_workers_of_all_reduce_for_long_steps(
    model: ModelFacts, batch_size: int, workers: int
):
    two = MachineFacts(cores=2)
    found = plan(model=model, machine=two, batch_size=batch_size)
    assert (found.workers, found.threads) == (workers, 2 // workers)
    assert ("workers=2 overrides" in found.explain()) is (workers == 1)
    assert "note" not in found.explain()
    assert plan(model=model, machine=two, workers=2).workers == 2
    assert "overrides" not in plan(model=model, machine=two, workers=2).explain()


def test_gradients_of_gpus_and_clusters_are_exchanged_by_all_workers():
    assert plan(machine=MachineFacts(cores=4, gpus=GPUS)).workers == 2
    assert plan(cluster="inline", known_clusters=("inline",)).workers == 4


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({}, 128),
        ({"batch_size": 1000}, 10),
        ({"data": replace(DATA, size_bytes=10_000 << 17)}, 8),
        ({"model": of_work(dense=40_000_000)}, 4),
        ({"model": of_work(dense=40_000_000_000)}, 1),
        ({"workers": 2}, 0),
        ({"strategy": LocalSGD()}, 0),
        ({"on_nan": "skip"}, 0),
        ({"cluster": "inline", "known_clusters": ("inline",)}, 0),
        ({"model": replace(MODEL, needs_compiler=True)}, 128),
    ],
)
def test_steps_of_a_worker_without_a_partner(arguments: dict[str, Any], steps: int):
    given: dict[str, Any] = {"workers": 1, **arguments}
    found = plan(**given)
    assert found.alone_steps == rules(found).alone_steps == steps
    assert ("none while there is one worker" in found.explain()) is (steps > 0)


def test_windows_that_cannot_be_compiled_are_exchanged_step_by_step():
    model = replace(MODEL, needs_compiler=True)
    machine = MachineFacts(cores=2, has_compiler=False)
    assert plan(model=model, machine=machine, workers=1).alone_steps == 0


def test_auto_respects_the_limits_of_the_strategy():
    assert plan(Single()).workers == 1


def test_workers_as_number_and_as_range():
    found = plan(workers=3, threads=5)
    assert (found.workers, found.min_workers, found.threads) == (3, 3, 5)
    found = plan(workers=(2, 6))
    assert (found.workers, found.min_workers) == (6, 2)


def test_batch_size_is_common_to_all_workers_for_gradients():
    found = plan(workers=3, batch_size=100)
    assert (found.worker_batch_size, found.global_batch_size) == (34, 100)
    assert found.exchanges_gradients
    assert found.exchanges_per_epoch == 100


def test_batch_size_is_each_workers_for_weights():
    found = plan(AEASGD(period=5), workers=2, batch_size=100)
    assert (found.worker_batch_size, found.global_batch_size) == (100, 200)
    assert not found.exchanges_gradients
    assert found.exchanges_per_epoch == 10


def test_batch_size_defaults_as_in_keras():
    assert plan().batch_size == 32
    assert plan(steps_per_epoch=7).batch_size == 1429


def test_steps_per_epoch_cuts_the_epoch():
    found = plan(batch_size=32, steps_per_epoch=100, epochs=4)
    assert (found.rows, found.data_rows) == (3200, 10_000)
    assert found.samples_expected == 10_000  # 3200, 3200, 3200 and 400 are left
    assert plan(batch_size=32, steps_per_epoch=1000).rows == 10_000


def test_samples_expected_leaves_out_epochs_before_the_first():
    assert plan(epochs=5, initial_epoch=3).samples_expected == 20_000


def test_a_period_of_an_epoch_becomes_steps():
    found = plan(Averaging(), workers=4, batch_size=100)
    assert found.strategy.period == 25
    assert found.exchanges_per_epoch == 1


USUAL = (AEASGD, AsyncDiLoCo, DiLoCo, DynSGD, EASGD, LocalSGD)


@pytest.mark.parametrize("made", USUAL)
@given(rows=st.integers(1, 100_000), workers=st.integers(2, 40))
def test_a_usual_period_leaves_three_exchanges_in_an_epoch(
    made: type[Strategy], rows: int, workers: int
):
    found = plan(made(), workers=workers, batch_size=10, data=replace(DATA, rows=rows))
    each = -(-rows // (10 * found.workers))
    most = min(made().period, each // 3)
    if made in (AEASGD, EASGD):  # n / beta exchanges in an epoch, beta is 0.9
        most = min(most, 9 * each // (10 * found.workers))
    assert found.strategy.period == max(1, most)
    assert "exchanges only" not in " ".join(found.warnings)


@pytest.mark.parametrize("made", USUAL)
def test_a_period_that_is_named_is_obeyed(made: type[Strategy]):
    usual = made().period
    for copied in (lambda one: one, lambda one: pickle.loads(pickle.dumps(one))):
        few: dict[str, Any] = {"workers": 8, "batch_size": 100}
        found = plan(copied(get(f"{made.name}:period={int(usual)}")), **few)
        assert found.strategy.period == usual
        assert "exchanges only" in " ".join(found.warnings)
        shorter = plan(copied(made()), **few)
        assert shorter.strategy.period < usual
        assert f"(usually {usual}; an epoch is short)" in shorter.explain()
        assert "usually" not in found.explain()


AVERAGED: list[Strategy] = [
    DiLoCo(),
    AsyncDiLoCo(),
    DynSGD(),
    LocalSGD(),
    AEASGD(),
]


@pytest.mark.parametrize("strategy", AVERAGED)
def test_moving_averages_that_fit_other_weights_are_told(strategy: Strategy):
    """Where they cannot be estimated anew."""
    normed = replace(MODEL, has_moving_averages=True)
    for workers in (1, 2, 4, 5):
        for model in (MODEL, normed):
            found = plan(strategy, workers=workers, model=model)
            assert not found.estimates_averages
            is_far = strategy.name in ("diloco", "async_diloco", "dynsgd")
            is_told = is_far and workers in (2, 4) and model is normed
            assert ("to which the averages" in " ".join(found.warnings)) is is_told


@pytest.mark.parametrize("strategy", [*AVERAGED, AllReduce(), Ensemble(), Single()])
def test_moving_averages_are_estimated_where_weights_are_mixed(strategy: Strategy):
    normed = replace(MODEL, has_moving_averages=True, can_estimate_averages=True)
    chunking = Chunking(rows=(5_000, 5_000))
    readable = [None, chunking]
    others: list[Any] = [
        replace(chunking, mixing="chunks"),
        replace(chunking, mixing="nothing"),
        replace(chunking, are_batches=True),
    ]
    for model in (MODEL, normed):
        for chunks in (*readable, *others):
            for workers in (1, *(() if strategy.name == "single" else (2,))):
                data = replace(DATA, chunking=chunks)
                found = plan(strategy, workers=workers, model=model, data=data)
                # The center of one worker has its weights under these two.
                is_own = workers == 1 and strategy.name in ("dynsgd", "local_sgd")
                is_mixed = strategy in AVERAGED and not is_own
                wanted = is_mixed and model is normed and chunks in readable
                assert found.estimates_averages is wanted
                assert ("estimated anew after each epoch" in found.explain()) is wanted


def test_a_pull_that_is_named_leaves_the_period():
    """Who names the pull of a worker has chosen how long it takes to come near."""
    few: dict[str, Any] = {"workers": 16, "batch_size": 10}
    assert plan(AEASGD(), **few).strategy.period == 3
    assert plan(AEASGD(moving_rate=0.01), **few).strategy.period == 10
    assert plan(AEASGD(rho=0.1, learning_rate=0.1), **few).strategy.period == 10


def test_order_is_the_plans():
    found = plan(seed=3, shuffle="batch", batch_size=50, steps_per_epoch=2)
    order = found.order()
    assert (order.rows, order.seed, order.shuffle) == (10_000, 3, "batch")
    assert order.rows_of(0) == found.rows == 100


def test_ensemble_trains_each_model_on_all_data():
    found = plan(Ensemble(), workers=3, data=replace(DATA, rows=10))
    assert (found.workers, found.models, found.samples_expected) == (3, 3, 30)
    assert found.warnings == ()
    found = plan(Ensemble(members=2), workers=3)
    assert (found.workers, found.models) == (2, 2)
    assert plan(Ensemble(members=5), workers=3).models == 5
    assert "none: 2 models" in plan(Ensemble(members=2), workers=3).explain()


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"workers": 0}, "workers=0"),
        ({"workers": True}, "workers=True"),
        ({"workers": "all"}, "workers='all'"),
        ({"workers": (3, 2)}, r"Pass workers=\(2, 3\)"),
        ({"workers": (0, 2)}, r"workers=\(0, 2\)"),
        ({"workers": (1, 2, 3)}, r"\(min, max\)"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"epochs": -1}, "epochs=-1"),
        ({"initial_epoch": -1}, "initial_epoch=-1"),
        ({"steps_per_epoch": 0}, "steps_per_epoch=0"),
        ({"max_restarts": -1}, "max_restarts=-1"),
        ({"standby": -1}, "standby=-1"),
        ({"standby": 2}, "standby=2 cannot be used. Expected 0 or 1"),
        ({"spares": -1}, "spares=-1"),
        ({"spares": 0.5}, "spares=0.5"),
        ({"codec": "int4"}, "Did you mean 'int8'"),
        ({"strategy": LocalSGD(), "scale_rate": "root"}, "scale_rate 'root'"),
        ({"overlap": 1}, "overlap=1 cannot be used. Expected True or False"),
        ({"threads": 0}, "threads=0"),
        ({"seed": -1}, "seed=-1"),
        ({"shuffle": "rows"}, "shuffle='rows'"),
        ({"cluster": "locale"}, "Did you mean 'local'"),
        ({"cluster": None}, "cluster=None"),
        ({"workers": None}, "workers=None"),
        ({"quorum": 0}, "quorum=0"),
        ({"quorum": -0.5}, "quorum=-0.5"),
        ({"quorum": 1.5}, "quorum=1.5"),
        ({"quorum": True}, "quorum=True"),
        ({"quorum": float("nan")}, "quorum=nan"),
        ({"quorum": "all"}, "quorum='all'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        plan(**arguments)


def test_no_data():
    with pytest.raises(PlanError, match="no samples"):
        plan(data=replace(DATA, rows=0))


def test_more_workers_than_the_strategy_can():
    with pytest.raises(PlanError, match="single works with at most 1"):
        plan(Single(), workers=2)


def test_weights_that_cannot_be_exchanged():
    with pytest.raises(PlanError, match="dense/kernel: float64"):
        plan(model=replace(MODEL, refused_dtypes=("dense/kernel: float64",)))


def test_mixed_reductions_cannot_share_a_gradient():
    model = replace(MODEL, reductions=("sum", "mean"))
    with pytest.raises(PlanError, match="sum, sum_over_batch_size"):
        plan(model=model, workers=2)
    assert plan(model=model, workers=1).workers == 1
    assert plan(AEASGD(), model=model, workers=2).workers == 2
    same = replace(MODEL, reductions=("sum_over_batch_size", "mean"))
    assert plan(model=same, workers=2).workers == 2


def test_backends_that_cannot_train():
    with pytest.raises(PlanError, match="'openvino' cannot train") as caught:
        plan(model=replace(MODEL, backend="openvino"))
    assert "KERAS_BACKEND=jax" in str(caught.value)


def test_the_best_model_is_that_of_the_monitor():
    model = replace(MODEL, metrics={"loss": "", "auc": "up"})
    held = replace(DATA, validation_rows=50)
    found = plan(model=model, data=held, monitor="val_auc")
    assert (found.monitor.name, found.monitor.is_higher_better) == ("val_auc", True)
    assert "that of the highest val_auc" in found.explain()
    assert found.to_json()["monitor"]["is_higher_better"]
    assert plan(data=held).monitor.name == "val_loss"
    assert plan(data=held, validation_freq=2).monitor.name == "loss"
    assert plan(data=held, validation_freq=2, epochs=2).monitor.name == "val_loss"
    assert plan().monitor.name == "loss"


def test_asynchronous_strategies_cannot_be_deterministic():
    with pytest.raises(PlanError, match="deterministic=True with aeasgd"):
        plan(AEASGD(), workers=2, deterministic=True)
    assert plan(AEASGD(), workers=1, deterministic=True).is_repeatable
    assert plan(LocalSGD(), workers=2, deterministic=True).is_repeatable
    assert plan(Ensemble(), workers=2, deterministic=True).is_repeatable


def test_epochs_that_overlap_cannot_be_deterministic():
    loose: dict[str, Any] = {"deterministic": True, "epoch_barrier": False}
    for strategy in (LocalSGD(), AllReduce()):
        with pytest.raises(PlanError, match="epoch_barrier=False on 2 workers"):
            plan(strategy, workers=2, **loose)
        assert plan(strategy, workers=1, **loose).is_repeatable
    assert plan(Ensemble(), workers=2, **loose).is_repeatable
    found = plan(LocalSGD(), workers=2, epoch_barrier=False)
    assert not found.is_repeatable
    assert "no: without epoch_barrier" in found.explain()


def test_a_loss_without_a_reduction_is_the_models_own_affair():
    model = replace(MODEL, reductions=("none",))
    with pytest.raises(PlanError, match="reduction='none'"):
        plan(LocalSGD(), model=model, workers=1)
    assert plan(model=replace(model, has_own_loss=True)).workers


def test_a_strategys_own_refusal_is_the_plans():
    with pytest.raises(PlanError, match="moving_rate"):
        plan(AEASGD(moving_rate=0.9), workers=4)


# -------------------------------------------------------------------- quorum


@pytest.mark.parametrize(
    ("workers", "quorum", "found"),
    [
        (1, None, 0),
        (2, None, 0),
        (3, None, 2),
        (4, None, 3),
        (8, None, 6),
        (2, 1, 1),
        (4, np.int64(2), 2),
        (4, 4, 0),
        (4, 1.0, 0),
        (4, 0.5, 2),
        (10, 0.7, 7),
        (8, np.float32(0.01), 1),
    ],
)
def test_quorum(workers: int, quorum: Any, found: int):
    chosen = plan(LocalSGD(), workers=workers, quorum=quorum)
    assert chosen.quorum == found
    assert type(chosen.quorum) is int
    assert rules(chosen).quorum == found
    assert ("a round closes with" in chosen.explain()) == bool(found)
    assert json.loads(json.dumps(chosen.to_json()))["quorum"] == found


@pytest.mark.parametrize("strategy", [AllReduce(), AEASGD(), Ensemble(), Single()])
def test_strategies_without_a_quorum(strategy: Strategy):
    workers = strategy.max_workers or 4
    assert plan(strategy, workers=workers).quorum == 0
    with pytest.raises(PlanError, match=f"quorum=1 with {strategy.name}") as caught:
        plan(strategy, workers=workers, quorum=1)
    assert "local_sgd" in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [{"deterministic": True}, {"cluster": "inline", "known_clusters": ("inline",)}],
)
def test_rounds_that_wait_for_all(arguments: dict[str, Any]):
    assert plan(LocalSGD(), workers=4, **arguments).quorum == 0
    assert plan(LocalSGD(), workers=4, quorum=4, **arguments).quorum == 0
    with pytest.raises(PlanError, match="quorum=3 with"):
        plan(LocalSGD(), workers=4, quorum=3, **arguments)


def test_a_quorum_of_more_workers_than_there_are():
    with pytest.raises(PlanError, match=r"quorum=5 with 4 worker\(s\)"):
        plan(LocalSGD(), workers=4, quorum=5)
    few = replace(DATA, rows=64)  # for two workers
    assert plan(LocalSGD(), workers=4, quorum=3, data=few).quorum == 0


def test_explain_says_that_late_workers_make_runs_differ():
    text = plan(LocalSGD(), workers=4).explain()
    assert "a round closes with 3 of 4" in text
    assert "repeatable while no worker is late" in text
    assert "late" not in plan(LocalSGD(), workers=4, quorum=1.0).explain()


# ------------------------------------------------------------------ warnings


def test_small_data_shrinks_the_workers():
    small = replace(DATA, rows=100)
    found = plan(AEASGD(), workers=8, batch_size=32, data=small)
    assert (found.workers, found.min_workers) == (3, 3)
    assert "100 samples an epoch are too few for 8 workers" in found.warnings[0]
    found = plan(AEASGD(), workers=2, batch_size=200, data=small)
    assert found.workers == 1


def test_gradient_exchanges_shrink_when_a_rank_would_have_no_row():
    found = plan(workers=8, batch_size=5)
    assert (found.workers, len(found.warnings)) == (5, 1)
    assert plan(workers=8, batch_size=100, data=replace(DATA, rows=3)).workers == 3
    assert plan(workers=8, batch_size=8).warnings == ()


def test_few_exchanges():
    found = plan(AEASGD(period=500), workers=2)
    assert "exchanges only" in found.warnings[0]


@pytest.mark.parametrize(
    ("strategy", "workers", "epochs", "advised"),
    [
        (AEASGD(), 8, 1, 4),  # 156 steps each, of 1,250
        (AsyncDiLoCo(), 8, 1, 4),
        (LocalSGD(), 32, 2, 8),
        (AEASGD(), 4, 1, 0),  # 312 steps each
        (AEASGD(), 8, 2, 0),
        (AllReduce(), 8, 1, 0),
        (Ensemble(), 8, 1, 0),
        (Downpour(), 8, 1, 0),  # it adds the changes up
    ],
)
def test_few_steps_of_averaged_workers_are_told(
    strategy: Strategy, workers: int, epochs: int, advised: int
):
    given: dict[str, Any] = {"workers": workers, "epochs": epochs, "batch_size": 8}
    words = "steps in the whole run"
    told = " ".join(plan(strategy, **given).warnings)
    assert (words in told) is bool(advised)
    if advised:
        assert f"smaller batch_size, or with {advised} workers" in told
        given["workers"] = advised
        assert words not in " ".join(plan(strategy, **given).warnings)


def test_few_steps_of_a_trial_are_not_told():
    assert plan(AEASGD(), workers=8, batch_size=16).warnings == ()  # 625 of plain Keras


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"epochs": 2, "initial_epoch": 2}, "nothing to train"),
        ({"epochs": 0}, "nothing to train"),
        ({"model": replace(MODEL, unmergeable_metrics=("mine",))}, "mine cannot be"),
        ({"model": replace(MODEL, lost_logs=("all",))}, "all, which train_step"),
        ({"model": replace(MODEL, has_masks=True)}, "masks entries"),
        ({"strategy": Downpour(), "workers": 4}, "known to overshoot there"),
        (
            {"strategy": EAMSGD(), "workers": 8, "batch_size": 16},
            "momentum=0.9), and is known",
        ),
        ({"strategy": Downpour(), "workers": 3, "model": ADAM}, "24.9 with 16 workers"),
        ({"strategy": EAMSGD(), "workers": 3, "model": ADAM}, "learning rate by 0.1."),
        ({"data": replace(DATA, is_exactly_once=False, kind="stream")}, "twice"),
        ({"machine": replace(MACHINE, memory_bytes=1000)}, "memory are free"),
    ],
)
def test_other_warnings(arguments: dict[str, Any], words: str):
    given: dict[str, Any] = {"workers": 2, **arguments}
    [warning] = plan(**given).warnings
    assert words in warning


def test_two_workers_of_downpour_with_adam_are_no_fault():
    for strategy in (Downpour(), EAMSGD(), AEASGD()):
        assert plan(strategy, workers=2, model=ADAM).warnings == ()
    assert plan(AEASGD(), workers=8, batch_size=16, model=ADAM).warnings == ()


# ----------------------------------------------------------- explain and JSON


def test_explain_describes_the_run():
    text = plan(AEASGD(), workers=2, batch_size=64, epochs=3).explain()
    assert "aeasgd on 2 workers, 4 threads each, cluster 'local'" in text
    assert "64 samples of a worker, 128 of all workers together" in text
    assert "every 10 steps" in text
    assert "exactly once" in text
    assert "two runs differ" in text
    assert "note" not in text


def test_explain_says_where_servers_run():
    two = tuple(NodeFacts(name=name, cores=4) for name in ("10.0.0.7", "10.0.0.8"))
    there = MachineFacts(cores=4, nodes=two)
    text = plan(AEASGD(), machine=there, workers=2, servers=3).explain()
    assert "the one that orders messages beside this script, the 2 others" in text
    assert "standbys" not in text
    text = plan(AEASGD(), machine=there, workers=2, servers=3, standby=1).explain()
    assert "standbys of those on other nodes" in text
    assert "beside this script" not in plan(AEASGD(), servers=3).explain()


@pytest.mark.parametrize(
    ("epochs", "initial_epoch", "words"),
    [
        (3, 0, "epochs     3 epochs, 10,000 samples each, 30,000 in all"),
        (1, 0, "epochs     1 epoch, 10,000 samples each, 10,000 in all"),
        (5, 2, "epochs     epochs 3 to 5 of 5, 10,000 samples each, 30,000 in all"),
        (5, 4, "epochs     epoch 5 of 5, 10,000 samples each, 10,000 in all"),
        (2, 2, "epochs     0 epochs, 10,000 samples each, 0 in all"),
    ],
)
def test_explain_counts_epochs_as_progress_does(
    epochs: int, initial_epoch: int, words: str
):
    found = plan(epochs=epochs, initial_epoch=initial_epoch).explain()
    assert f"  {words}\n" in found


def test_explain_names_the_faster_alternative_on_cpu():
    text = plan(workers=2).explain()
    assert "every step" in text
    assert "strategy='auto'" in text
    assert "note" not in plan(workers=1).explain()
    assert "note" not in plan(machine=MachineFacts(cores=8, gpus=GPUS)).explain()


def test_explain_repeatable():
    assert "to rounding" in plan(workers=2).explain()
    assert "bit for bit, with seed 5" in plan(deterministic=True, seed=5).explain()


def test_explain_at_least_once_and_warnings():
    text = plan(data=replace(DATA, is_exactly_once=False), workers=1).explain()
    assert "at least once" in text
    assert "  warning    arrays cannot be read by position" in text


def test_to_json_is_plain():
    found = plan(AEASGD(period=7), workers=2)
    plain = json.loads(json.dumps(found.to_json()))
    assert plain["strategy"]["name"] == "aeasgd"
    assert plain["strategy"]["period"] == 7
    assert plain["samples_expected"] == found.samples_expected == 10_000
    assert plain["model"]["parameters"] == 1000
    assert plain["machine"]["cores"] == 8


def test_message_bytes():
    assert plan().message_bytes == 4096


# -------------------------------------------------------------- environment


def test_environment_of_nothing():
    assert environment({"SHOAL_WORKERS": " "}) == EnvironmentVariables()


def test_environment_keeps_compiled_programs_unless_told():
    assert environment({}).cache == "~/.cache/shoal"
    assert environment({"SHOAL_CACHE": "/fast"}).cache == "/fast"
    assert environment({"SHOAL_CACHE": "off"}).cache is None


def test_environment_reads_the_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHOAL_RUNS", "s3://bucket/runs")
    assert environment().runs == "s3://bucket/runs"


@pytest.mark.parametrize(
    ("text", "workers"),
    [("auto", "auto"), ("3", 3), ("2-4", (2, 4)), (" 2 - 4 ", (2, 4))],
)
def test_environment_workers(text: str, workers: Any):
    assert environment({"SHOAL_WORKERS": text}).workers == workers


def test_environment_cluster():
    assert environment({}).cluster == "local"
    assert environment({"SHOAL_CLUSTER": " ray "}).cluster == "ray"


def test_environment_the_rest():
    found = environment({"SHOAL_DATA": "/data", "SHOAL_VERBOSE": "2"})
    assert (found.data, found.verbose) == ("/data", 2)
    assert environment({"SHOAL_VERBOSE": "auto"}).verbose == "auto"
    assert environment({"SHOAL_GENERATOR_GB": " 0.5 "}).generator_gb == 0.5


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SHOAL_WORKERS", "many"),
        ("SHOAL_WORKERS", "1-2-3"),
        ("SHOAL_WORKERS", "-1"),
        ("SHOAL_VERBOSE", "3"),
        ("SHOAL_GENERATOR_GB", "nan"),
        ("SHOAL_GENERATOR_GB", "ten"),
    ],
)
def test_invalid_environment_variables_are_refused(name: str, text: str):
    with pytest.raises(ConfigError, match=f"{name}='{text}'"):
        environment({name: text})


@pytest.mark.parametrize(
    ("strategy", "optimizer", "scale_rate", "factor"),
    [
        (LocalSGD(), "Adam", None, 2.0),
        (LocalSGD(), "SGD", None, 1.0),
        (LocalSGD(), "Adam", "none", 1.0),
        (LocalSGD(), "SGD", "linear", 4.0),
        (EASGD(), "Adam", None, 2.0),
        (EASGD(period=2), "Adam", None, 2.0),
        (EASGD(period=0), "Adam", None, 2.0),
        (EASGD(period=1), "Adam", None, 1.0),  # the rule of its paper
        (Downpour(), "Adam", None, 1.0),
        (Downpour(), "Adam", "sqrt", 2.0),
        (AllReduce(), "Adam", None, 1.0),
        (AllReduce(scale_learning_rate=True), "Adam", None, 4.0),
    ],
)
def test_the_rate_follows_the_workers(
    strategy: Strategy, optimizer: str, scale_rate: str | None, factor: float
):
    model = replace(MODEL, optimizer=optimizer, is_adaptive=optimizer == "Adam")
    found = plan(strategy, model=model, workers=4, scale_rate=scale_rate)
    assert found.rate_factor == factor
    is_default = factor == 2.0 and scale_rate is None
    assert ("scale_rate='none' leaves it" in found.explain()) is is_default
    assert (f"use {factor:g} times the optimizer's" in found.explain()) is (factor > 1)
    alone = plan(strategy, model=model, workers=1, scale_rate=scale_rate)
    assert (alone.rate_factor, "learning rate" in alone.explain()) == (1.0, False)


@pytest.mark.parametrize("strategy", [AllReduce(), Ensemble()])
def test_only_a_rate_of_averaged_workers_is_scaled(strategy: Strategy):
    with pytest.raises(PlanError, match=f"scale_rate='sqrt' with {strategy.name}"):
        plan(strategy, workers=2, scale_rate="sqrt")
    assert plan(strategy, workers=2, scale_rate="none").rate_factor == 1.0


def test_a_request_of_an_older_version_keeps_its_rate():
    old = pickle.loads(pickle.dumps(Request(strategy=LocalSGD(), scale_rate="sqrt")))
    assert old.scale_rate == "sqrt"
    state = {k: v for k, v in vars(old).items() if k != "scale_rate"}
    old = Request.__new__(Request)
    old.__setstate__(state)
    assert resolve(old, MODEL, DATA, MACHINE).rate_factor == 1.0
