"""Spark as a cluster, without a session: what is refused, and who has room."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import shoal
from shoal.clusters import ResourceRequest, Spark
from shoal.clusters import spark as module
from shoal.clusters.finding import find_cluster
from shoal.clusters.spark import (
    address,
    machine_of,
    refuse,
    refuse_gpus,
    workers_now,
)
from shoal.errors import ClusterError, ConfigError, PlanError
from shoal.facts import MachineFacts, NodeFacts
from shoal.jvm_errors import cause
from tests.habits.cases import data, make_model
from tests.test_house import run_python

pytest.importorskip("pyspark")

from shoal.launchers.spark_resources import TaskResources
from shoal.launchers.spark_session import (
    CONNECT,
    Executor,
    SessionFacts,
    active_context,
    overhead_of,
)


def facts(**changes: Any) -> SessionFacts:
    """A session on a machine of two cores."""
    known: dict[str, Any] = {
        "master": "local[2]", "host": "192.0.2.9", "bind": "192.0.2.9",
        "resources": TaskResources(cpus=1), "slots": 2,
        "executors": (Executor(host="127.0.0.1", cores=2),),
    }  # fmt: skip
    return SessionFacts(**{**known, **changes})


def asked(least: int, most: int) -> ResourceRequest:
    return ResourceRequest(least=least, most=most, threads=1, backend="jax")


def test_it_is_found_by_its_name() -> None:
    assert find_cluster("spark") == Spark()


def test_error_of_an_old_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen with the real 3.4.4; `tests/spark` runs under 3.5 and 4."""
    monkeypatch.setattr("pyspark.__version__", "3.4.4")
    with pytest.raises(ConfigError, match=r"PySpark 3\.4\.4 is loaded\. Expected 3\.5"):
        shoal.plan(make_model(), *data(8), cluster="spark")
    monkeypatch.setattr("pyspark.__version__", "3.5.0")
    with pytest.raises(PlanError, match="no active Spark session"):
        shoal.plan(make_model(), *data(8), cluster="spark")


def test_its_module_imports_no_pyspark() -> None:
    code = (
        "import sys; from shoal.clusters.finding import find_cluster; "
        "find_cluster('spark'); print({'pyspark', 'py4j'} & set(sys.modules))"
    )
    assert run_python(code) == "set()"


@pytest.mark.parametrize("wait_s", [-1, float("inf"), "60"])
def test_a_wrong_wait_is_refused(wait_s: Any) -> None:
    with pytest.raises(ConfigError, match=r"wait_s=.* cannot be used"):
        Spark(wait_s=wait_s)


@pytest.mark.parametrize(
    "wrong",
    [{"port": 70000}, {"port": "a"}, {"cpus": 0}, {"gpus": -1}, {"silent_s": 1}],
)
def test_wrong_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}=.* cannot be used"):
        Spark(**wrong)


# -------------------------------------------------------------------- sessions


def test_without_a_session_the_user_is_told_how_to_create_one() -> None:
    with pytest.raises(PlanError, match=r"no active Spark session.*getOrCreate\(\)"):
        shoal.plan(make_model(), *data(64), cluster="spark")


def test_without_pyspark_the_user_is_told_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "pyspark")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'shoal\[spark\]'"):
        Spark().look("jax")


def test_a_session_of_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = SimpleNamespace(getActiveSession=lambda: object())
    monkeypatch.setitem(sys.modules, CONNECT, SimpleNamespace(SparkSession=kind))
    with pytest.raises(PlanError, match="one of Spark Connect"):
        active_context()


def test_threads_that_share_a_job_group_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    monkeypatch.setattr(SparkContext, "_gateway", object())
    with pytest.raises(PlanError, match="Unset PYSPARK_PIN_THREAD"):
        active_context()


def test_a_limit_of_python_memory_is_refused() -> None:
    with pytest.raises(PlanError, match=r"pyspark\.memory allows 1,024 MiB a worker"):
        refuse(facts(python_mib=2048))
    with pytest.raises(PlanError, match=r"allows 8,191 MiB a worker"):
        refuse(facts(python_mib=(16 << 10) - 1))
    refuse(facts(python_mib=16 << 10))
    refuse(facts(python_mib=0))


class Conf:
    """Settings of a JVM, sizes in MiB."""

    def __init__(self, **settings: str) -> None:
        self._settings = {
            f"spark.{k.replace('_', '.')}": v for k, v in settings.items()
        }

    def getSizeAsMb(self, name: str, default: str) -> int:
        return int(self._settings.get(name, default).removesuffix("m"))

    def getDouble(self, name: str, default: float) -> float:
        return float(self._settings.get(name, default))


@pytest.mark.parametrize(
    ("master", "settings", "expected"),
    [
        ("local[2]", {"executor_memoryOverhead": "512m"}, 0),
        ("spark://a:7077", {}, 0),
        ("yarn", {}, 384),
        ("yarn", {"executor_memory": "8192m"}, 819),
        ("yarn", {"executor_memory": "8192m", "executor_memoryOverhead": "700m"}, 700),
        ("yarn", {"executor_memory": "8192m", "executor_memoryOverheadFactor": "0.4"},
         3276),
        ("yarn", {"executor_memoryOverheadFactor": "0"}, 384),
        ("yarn", {"executor_minMemoryOverhead": "1024m"}, 1024),
        ("yarn", {"executor_memory": "8192m", "kubernetes_memoryOverheadFactor": "0.4"},
         819),
        ("k8s://https://a", {"executor_memory": "8192m",
         "kubernetes_memoryOverheadFactor": "0.4"}, 3276),
        ("k8s://https://a", {"executor_memory": "8192m",
         "executor_memoryOverheadFactor": "0.2",
         "kubernetes_memoryOverheadFactor": "0.4"}, 1638),
    ],
)  # fmt: skip
def test_the_memory_beside_the_jvm_is_that_of_spark(
    master: str, settings: dict[str, str], expected: int
) -> None:
    assert overhead_of(master, Conf(**settings)) == expected


@pytest.mark.parametrize("master", ["local", "local[4]"])
def test_gpus_are_refused_where_spark_hands_out_none(master: str) -> None:
    with pytest.raises(PlanError, match=r"to have 1 GPUs.*cluster='local'"):
        refuse_gpus(master, 1.0)
    refuse_gpus(master, 0.0)
    refuse_gpus("spark://a:7077", 1.0)


# ------------------------------------------------------------------- addresses


@pytest.mark.parametrize("master", ["local", "local[2]", "local-cluster[2,1,1024]"])
def test_on_one_machine_nothing_leaves_it(master: str) -> None:
    assert address(facts(master=master)) == "127.0.0.1"


def test_on_other_masters_executors_call_the_address_of_the_driver() -> None:
    assert address(facts(master="yarn", host="127.0.0.1")) == "127.0.0.1"


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(PlanError, match=r"'192\.0\.2\.9' is not an address of this"):
        address(facts(master="yarn", bind="10.0.0.4"))


# ------------------------------------------------------------------------ room


@pytest.mark.parametrize(
    ("request_", "busy", "taken", "workers"),
    [
        (asked(2, 2), 0, 0, 2), (asked(1, 2), 1, 0, 1), (asked(2, 2), 1, 0, 0),
        (asked(1, 8), 0, 0, 2), (asked(1, 2), 0, 1, 1), (asked(1, 2), 1, 1, 1),
        (asked(1, 2), 0, 2, 0),
    ],
)  # fmt: skip
def test_workers_begin_in_free_slots(
    request_: ResourceRequest, busy: int, taken: int, workers: int
) -> None:
    assert workers_now(facts(busy=busy), request_, taken) == workers


def test_runs_of_other_threads_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLAIMS", module._Claims())
    cluster: Any = Spark(wait_s=0)
    here, there = threading.Event(), threading.Event()
    looks = iter(range(100))

    def read() -> SessionFacts:
        # The other thread gives its slots back while this one looks for some.
        if threading.current_thread() is threading.main_thread() and next(looks) == 2:
            there.set()
            thread.join()
        return facts()

    def hold() -> None:
        workers = cluster._claim(read, asked(2, 2))
        here.set()
        assert there.wait(30)
        module._CLAIMS.release(workers)

    thread = threading.Thread(target=hold)
    thread.start()
    assert here.wait(30)
    assert cluster._claim(read, asked(1, 2)) == 2
    with pytest.raises(ClusterError, match="Expected 1 that are free"):
        cluster._claim(read, asked(1, 2))  # its own run would never end


def test_with_dynamic_allocation_the_least_number_is_requested_at_once() -> None:
    none: dict[str, Any] = {"slots": 0, "executors": (), "is_dynamic": True}
    assert workers_now(facts(master="yarn", **none), asked(2, 8), 0) == 2


def test_a_task_takes_cores_and_gpus_of_executors() -> None:
    executors = tuple(Executor(host=name, cores=8) for name in "ab")
    seen = facts(
        master="yarn", executors=executors, slots=8, overhead_mib=2000,
        resources=TaskResources(cpus=2, gpus=1.0),
    )  # fmt: skip
    machine = machine_of(seen)
    assert (machine.threads_each, machine.gpus_each, machine.slots) == (2, 1.0, 8)
    assert [node.gpus for node in machine.nodes] == [4, 4]
    assert machine.overhead_each_mib == 500
    assert (machine.is_divisible, machine.room_for(4)) == (True, 4)
    assert not machine_of(facts()).is_divisible


def test_slots_decide_room_and_threads() -> None:
    node = (NodeFacts(name="a", cores=8),)
    machine = MachineFacts(cores=8, nodes=node, slots=3, threads_each=2)
    assert machine.threads_of(1) == 2
    assert machine.room_for(2) == 3


# ---------------------------------------------------------------------- causes

SPARK_3 = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0
failed 4 times, most recent failure: Lost task 0.3 (TID 6) (10.0.0.3 executor 2): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 100, in main
    raise PySparkRuntimeError(
pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has 3.12

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:561)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SPARK_3, "pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] "
         "Python in worker has 3.12 (executor 2 on 10.0.0.3)"),
        ("Job aborted\n\tat a.b(c)\nCaused by: java.io.IOException: full\n\tat d.e(f)",
         "java.io.IOException: full"),
        ("", ""),
        ("Job 3 cancelled\n\tat x.y(z)", "Job 3 cancelled"),
    ],
)  # fmt: skip
def test_a_cause_is_one_line(text: str, expected: str) -> None:
    assert cause(text) == expected
