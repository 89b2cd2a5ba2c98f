"""Ray clusters: which one is meant, what it has free, and runs over several nodes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Generator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

import keras
import numpy as np
import psutil
import pytest

import shoal
from shoal.clusters import Ray
from shoal.clusters.finding import find_cluster
from shoal.clusters.ray import read_nodes
from shoal.errors import ClusterError, ConfigError, PlanError
from shoal.facts import MachineFacts, NodeFacts
from shoal.launchers.carrier import CallResult, Carrier, RequestedAgent
from shoal.launchers.data_broadcast import PIECE_BYTES, DataBroadcast
from shoal.launchers.node_agent import Arrival, Memory, NodeAgent
from shoal.launchers.shared import SharedBlob
from shoal.launchers.versions import versions
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from tests.ray_nodes import RayNode, imported
from tests.support.watch import Watch

ROWS = 2000


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((ROWS, 4)).astype("f4")
    return x, (x[:, :1] > 0).astype("f4")


def model() -> Any:
    keras.utils.set_random_seed(1)
    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")])
    net.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
    return net


# --------------------------------------------------------------- which is meant


def test_names_and_addresses() -> None:
    assert find_cluster("ray") == Ray()
    assert find_cluster("10.0.0.7:6379") == Ray(address="10.0.0.7:6379")
    assert find_cluster("ray://head:10001") == Ray(address="ray://head:10001")
    assert find_cluster("auto", {"RAY_ADDRESS": "10.0.0.7:6379"}) == Ray()
    own = Ray(placement="pack")
    assert find_cluster(own) is own
    for name in ("local", "inline", "prod"):
        assert find_cluster(name) == name


def test_error_of_an_unknown_name_lists_known_clusters() -> None:
    with pytest.raises(ConfigError, match="'ray'") as caught:
        shoal.plan(model(), *data(), cluster="raj")
    assert "auto, inline, local, ray" in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"placement": "SPREAD"}, "Expected 'spread' or 'pack'"),
        ({"cpus": 0}, "cpus=0 cannot be used"),
        ({"gpus": -1.0}, "gpus=-1.0 cannot be used"),
        ({"wait_s": float("nan")}, "wait_s=nan cannot be used"),
        ({"pip": "scipy"}, r"Write pip=\('scipy',\)"),
    ],
)
def test_values_that_cannot_be_used(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Ray(**fields)


@pytest.mark.parametrize("address", ["ray://head:10001", "http://head:8265"])
def test_a_cluster_is_not_reached_from_outside(address: str) -> None:
    with pytest.raises(PlanError, match="Submit the script: ray job submit"):
        shoal.plan(model(), *data(), cluster=address)


def test_no_cluster_at_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
    with pytest.raises(ClusterError, match=f"no answer from {host}:{port}"):
        shoal.plan(model(), *data(), cluster=f"{host}:{port}")


# ------------------------------------------------------------ what it has free


def test_nodes_that_are_gone_are_left_out() -> None:
    def node(name: str, *, is_alive: bool = True, **resources: float) -> dict[str, Any]:
        return {"NodeID": name, "Alive": is_alive, "NodeManagerAddress": f"ip-{name}",
                "Resources": resources}  # fmt: skip

    nodes = [node("b", CPU=8, GPU=2), node("a", CPU=4), node("c", is_alive=False)]
    found = read_nodes(nodes, {"b": {"CPU": 3.5}})
    assert [(n.name, n.cores, n.gpus) for n in found] == [
        ("ip-a", 4, 0),
        ("ip-b", 3, 0),
    ]


def planned(
    machine: MachineFacts, monkeypatch: pytest.MonkeyPatch, **given: Any
) -> Any:
    monkeypatch.setattr(Ray, "look", lambda self, backend: machine)
    return shoal.plan(model(), *data(), cluster="10.0.0.7:6379", **given)


def cluster_of(count: int, cores: int, gpus: int = 0, each: float = 0) -> MachineFacts:
    nodes = tuple(
        NodeFacts(name=f"10.0.0.{n}", cores=cores, gpus=gpus) for n in range(count)
    )
    return MachineFacts(cores=cores, nodes=nodes, gpus_each=each)


def test_one_worker_a_node_or_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(cluster_of(3, 8), monkeypatch)
    assert (plan.request.cluster, plan.workers, plan.threads, plan.device) == (
        "ray", 3, 8, "cpu"
    )  # fmt: skip
    plan = planned(cluster_of(2, 8, gpus=4, each=1.0), monkeypatch)
    assert (plan.workers, plan.threads, plan.device) == (8, 2, "gpu")
    assert {place.name for place in plan.places} == {""}
    plan = planned(cluster_of(2, 8, gpus=1, each=0.5), monkeypatch)
    assert (plan.workers, plan.places[0].share) == (4, 0.45)
    assert plan.collective == "server"
    assert "2 nodes (10.0.0.0, 10.0.0.1), 16 cores free" in plan.explain()


def test_too_few_resources_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(cluster_of(2, 2), monkeypatch, workers=(2, 8))
    assert (plan.min_workers, plan.workers) == (2, 8)
    assert any("has room for 4 of 8 workers now" in text for text in plan.warnings)


def test_options_that_need_one_machine_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = cluster_of(2, 2)
    with pytest.raises(PlanError, match="ensemble does not run on cluster='ray'"):
        planned(machine, monkeypatch, strategy="ensemble", workers=2)
    with pytest.raises(PlanError, match="have no folder to meet in"):
        planned(machine, monkeypatch, collective="native", workers=2)
    monkeypatch.setattr(Ray, "look", lambda self, backend: machine)

    def batches() -> Generator[Any]:
        while True:
            yield np.zeros((8, 4), "f4"), np.zeros((8, 1), "f4")

    with pytest.raises(PlanError, match="only this process can read it"):
        shoal.plan(model(), batches(), steps_per_epoch=4, cluster="10.0.0.7:6379")


# ---------------------------------------------------------- data on its way


class Hands(Carrier):
    """Carries at once, in this process; counts what it carried."""

    def __init__(self) -> None:
        self.puts, self.bad = 0, list[Any]()

    @property
    def node_id(self) -> str:
        return "here"

    @property
    def room(self) -> str:
        return "nothing"

    def request_agents(
        self, avoided: Collection[str], *, is_patient: bool
    ) -> Sequence[RequestedAgent]:
        raise NotImplementedError

    def put(self, piece: Any) -> Any:
        self.puts += 1
        return bytes(piece)

    def call(self, agent: Any, method: str, *arguments: Any) -> Any:
        if agent not in self.bad:
            getattr(agent, method)(*arguments)
        return agent, arguments[0]

    def ready(self, calls: Sequence[Any], timeout_s: float) -> dict[Any, CallResult]:
        return {
            call: CallResult(lost="hung up" if call[0] in self.bad else "")
            for call in calls
        }

    def release(self, agent: Any) -> None:
        self.bad.append(agent)


class Journey:
    """Data of two pieces and a bit, and agents on nodes."""

    def __init__(self) -> None:
        self.blob, self.hands = SharedBlob(), Hands()
        self.size = 2 * PIECE_BYTES + 5
        with self.blob.allocate(self.size) as memory:
            memory[-5:] = b"fives"
        self.broadcast = DataBroadcast(self.blob, self.hands)
        self.agents: list[NodeAgent] = []

    def arrive(self, node_id: str) -> tuple[NodeAgent, Memory]:
        agent = NodeAgent(77)
        self.agents.append(agent)
        here = Arrival(node=node_id, node_id=node_id, versions={}, memory=agent.memory)
        return agent, self.broadcast.home(here, agent)

    def travel(self) -> None:
        self.broadcast.look(may_go=True)
        if self.broadcast._thread is not None:
            self.broadcast._thread.join()

    def close(self) -> None:
        self.broadcast.close()
        for agent in self.agents:
            agent._blob.close()
        self.blob.close()


@pytest.fixture
def journey() -> Generator[Journey]:
    found = Journey()
    yield found
    found.close()


def test_data_is_sent_once_to_each_node(journey: Journey) -> None:
    (first, home), (_, same), (other, elsewhere) = map(journey.arrive, "aab")
    _, here = journey.arrive("here")
    assert home == same == first.memory
    assert elsewhere == other.memory
    assert here == Memory.of(journey.blob)
    journey.travel()
    assert not journey.broadcast.has_arrived("a")  # it is not complete yet
    journey.broadcast.load()
    assert journey.broadcast.has_arrived("here")
    journey.travel()
    assert journey.hands.puts == 3
    assert journey.broadcast.has_arrived("a")
    assert journey.broadcast.has_arrived("b")
    found = home.open()
    assert found is not None
    assert os.pread(found, 9, journey.size - 5) == b"fives"
    os.close(found)


def test_another_agent_of_the_node_keeps_the_copy(journey: Journey) -> None:
    (first, _), (second, home) = map(journey.arrive, "aa")
    journey.broadcast.opened("a", second, home)
    journey.broadcast.load()
    journey.travel()
    journey.broadcast.forget(first)
    assert journey.broadcast.has_arrived("a")
    journey.broadcast.forget(second)
    assert not journey.broadcast.has_arrived("a")
    third, fresh = journey.arrive("a")
    assert fresh == third.memory
    journey.travel()
    assert journey.broadcast.has_arrived("a")
    assert journey.hands.puts == 6


def test_a_node_that_cannot_take_the_data_delays_no_other(journey: Journey) -> None:
    (bad, _), _ = map(journey.arrive, "ab")
    journey.hands.bad.append(bad)
    journey.broadcast.load()
    journey.travel()
    assert not journey.broadcast.has_arrived("a")
    assert journey.broadcast.has_arrived("b")


def test_memory_of_another_user_is_not_opened(journey: Journey) -> None:
    _, home = journey.arrive("a")
    assert Memory(pid=home.pid, descriptor=home.descriptor, mark=(0, 0)).open() is None
    assert Memory(pid=home.pid, descriptor=1 << 20, mark=home.mark).open() is None


# ------------------------------------------------------------- several nodes


class Cluster:
    """A head without room, and nodes at network addresses of their own."""

    def __init__(self, stack: ExitStack, count: int) -> None:
        from tests.support.hosts import Hosts

        try:
            self.hosts = Hosts(count)
        except (OSError, subprocess.CalledProcessError):
            _skip("network namespaces, which need root and iproute2")
        stack.callback(self.hosts.close)
        self._stack = stack
        self.head = RayNode(self.hosts.address, cpus=0)
        stack.callback(self.head.close)
        self.nodes = [self.add(number) for number in range(2)]

    def add(self, number: int, **options: Any) -> RayNode:
        ip = f"{self.hosts.address.rpartition('.')[0]}.{number + 2}"
        namespace = self.hosts.names[number]
        node = RayNode(ip, self.head.address, namespace, **options)
        self._stack.callback(node.close)
        return node


def _skip(what: str) -> NoReturn:
    """In CI nothing is skipped that it could run."""
    if os.environ.get("SHOAL_REQUIRE_HOSTS"):
        pytest.fail(f"needs {what}")
    pytest.skip(f"needs {what}")


@pytest.fixture(scope="module")
def cluster() -> Generator[Cluster]:
    pytest.importorskip("ray")
    with ExitStack() as stack:
        stack.enter_context(imported())
        yield Cluster(stack, 3)


def events_of(history: Any) -> list[dict[str, Any]]:
    return list(read_events(Folder.at(history.run.url)))


class Look(Watch):
    """Looks, when all train, which files of memory the workers of each node hold."""

    def __init__(self, nodes: Sequence[RayNode], root: Path) -> None:
        super().__init__(root)
        self.nodes = nodes
        self.found = list[tuple[int, int]]()
        self.handlers = set[str]()

    def is_over(self, kinds: Counter[str]) -> bool:
        handler: Any = signal.getsignal(signal.SIGTERM)
        self.handlers.add(handler.__module__)
        self.found = [self._of(node) for node in self.nodes]
        return kinds["worker_started"] >= 4

    def _of(self, node: RayNode) -> tuple[int, int]:
        workers, marks = node.workers(), set[int]()
        for worker in workers:
            for link in Path(f"/proc/{worker.pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # a worker opens and closes others
                    if "memfd:shoal-data" in os.readlink(link):
                        marks.add(link.stat().st_ino)
        return len(workers), len(marks)


@pytest.mark.process
@pytest.mark.ray
@pytest.mark.slow
def test_a_run_on_two_nodes_with_one_copy_of_the_data_on_each(
    cluster: Cluster, tmp_path: Path
) -> None:
    look = Look(cluster.nodes, tmp_path)
    history = shoal.fit(
        model(), *data(), epochs=9999, workers=4, strategy="aeasgd", verbose=0,
        cluster=cluster.head.address, run=str(tmp_path), callbacks=[look],
    )  # fmt: skip
    found = history.run.summary()
    assert found.samples_committed == ROWS * len(history.history["loss"])
    assert look.found == [(2, 1), (2, 1)]
    assert look.handlers == {"shoal.interruption"}  # and not Ray's
    events = events_of(history)
    nodes = [e["node"] for e in events if e["kind"] == "worker_started"]
    assert len(set(nodes)) == 2
    assert "localhost" not in nodes
    logs = list(Path(history.run.url, "experiments").glob("*.log"))
    assert len(logs) == 4
    for node in cluster.nodes:
        _, left = psutil.wait_procs(node.workers(), timeout=30)
        assert not left


class Cut(Watch):
    """Takes the cable of a node out when all train, until its workers are replaced."""

    def __init__(self, cluster: Cluster, root: Path, workers: int) -> None:
        super().__init__(root)
        self.cluster, self.workers = cluster, workers
        self.cut_at, self.number, self.there, self.before = 0.0, -1, 0, 0

    def is_over(self, kinds: Counter[str]) -> bool:
        if self.cut_at:
            return kinds["worker_replaced"] - self.before >= self.there
        started = [e for e in self.told if e["kind"] == "worker_started"]
        nodes = {event["rank"]: event["node"] for event in started}
        if len(nodes) == self.workers:
            # Ray may have put both on one node.
            self.number = [node.ip for node in self.cluster.nodes].index(nodes[0])
            self.there = list(nodes.values()).count(nodes[0])
            self.before = kinds["worker_replaced"]
            self.cut_at = time.time()
            self.cluster.hosts.cut(self.number)
        return False


@pytest.mark.process
@pytest.mark.ray
@pytest.mark.slow
def test_a_node_that_is_cut_off_costs_no_sample(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = Cut(cluster, tmp_path, workers=2)
    history = shoal.fit(
        model(), *data(), epochs=9999, workers=2, strategy="aeasgd", verbose=0,
        threads=1, cluster=cluster.head.address, run=str(tmp_path), callbacks=[cut],
    )  # fmt: skip
    epochs = len(history.history["loss"])
    assert history.run.summary().samples_committed == epochs * ROWS
    events = events_of(history)
    lost = [e["reason"] for e in events if e["kind"] == "worker_lost"]
    node = cluster.nodes[cut.number]
    assert len(lost) == cut.there, lost
    assert all(f"node {node.ip} is gone" in reason for reason in lost), lost
    took = {e["kind"]: e["time"] - cut.cut_at for e in events if e["kind"] in (
        "worker_left", "worker_lost", "worker_replaced")}  # fmt: skip
    with capsys.disabled():
        print("\na node was cut off:", {kind: round(s, 1) for kind, s in took.items()})
    # What is left on it ends by itself, though nobody can reach it.
    _, left = psutil.wait_procs(node.workers(), timeout=120)
    assert not left
    cluster.hosts.mend(cut.number)


@pytest.mark.process
@pytest.mark.ray
@pytest.mark.slow
def test_a_node_with_another_version_is_named(cluster: Cluster, tmp_path: Path) -> None:
    other = tmp_path / "keras-0.0.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: keras\nVersion: 0.0.1\n"
    )
    node = cluster.add(2, paths=(str(tmp_path),))
    with pytest.raises(ClusterError, match=r"has keras 0\.0\.1") as caught:
        shoal.fit(
            model(), *data(), workers=3, verbose=0, run=False, threads=1,
            cluster=Ray(address=cluster.head.address),
        )  # fmt: skip
    assert f"(here it is {versions()['keras']})" in str(caught.value)
    node.close()


SCRIPT = """
import os, sys
from pathlib import Path
import keras, numpy as np, shoal, shoal.clusters.ray
shoal.clusters.ray.LAST_RAY = Path("none")  # whatever else runs on this machine

class Look(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        from ray._raylet import AuthenticationMode, get_authentication_mode
        self.has_token = get_authentication_mode() == AuthenticationMode.TOKEN

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
look = Look()
h = shoal.fit(model, np.zeros((640, 4)), np.zeros((640, 1)), cluster="ray", workers=2,
    threads=1, epochs=2, run=False, verbose=0, callbacks=[look])
print(h.run.summary().samples_committed, look.has_token, sorted(
    name for name in os.environ if name.startswith("RAY_")))
"""


@pytest.mark.process
@pytest.mark.ray
@pytest.mark.slow
def test_a_cluster_for_one_run_asks_for_a_token_and_ends_with_it(
    tmp_path: Path,
) -> None:
    pytest.importorskip("ray")
    own = {n: v for n, v in os.environ.items() if not n.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**own, "SHOAL_TEST_NODE": "own"},
        capture_output=True, text=True, timeout=150, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.split(maxsplit=2) == ["1280", "True", "[]\n"], done.stderr
    left = [p for p in psutil.process_iter() if _is_of(p, "own")]
    assert not psutil.wait_procs(left, timeout=30)[1]


def _is_of(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get("SHOAL_TEST_NODE") == mark
    except psutil.Error:
        return False
