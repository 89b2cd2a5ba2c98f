"""What workers ask of Ray: nodes of an autoscaler, GPUs of their own, requirements."""

from __future__ import annotations

import importlib
import json
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import psutil
import pytest

import shoal
from shoal.clusters import Ray
from shoal.clusters.ray_joining import own_sigterm
from shoal.errors import ClusterError, ShoalError, ShoalWarning
from shoal.runs.events import exchange_records, read_events
from shoal.runs.folder import Folder
from tests.clusters.test_ray import ROWS, data, model
from tests.ray_nodes import RayNode, free_port, imported, listens, own_address
from tests.support.watch import Watch

pytestmark = [pytest.mark.process, pytest.mark.slow]
NOTHING: dict[str, Any] = {
    "file_mounts": {}, "auth": {}, "docker": {}, "cluster_synced_files": [],
    "initialization_commands": [], "setup_commands": [], "head_setup_commands": [],
    "worker_setup_commands": [], "head_start_ray_commands": [],
    "worker_start_ray_commands": [],
}  # fmt: skip
NODE_TYPES = {
    "ray.head.default": {"resources": {}, "node_config": {}, "max_workers": 0},
    "worker": {
        "resources": {"CPU": 1, "object_store_memory": 100_000_000},
        "node_config": {}, "min_workers": 0, "max_workers": 2,
    },
}  # fmt: skip


def train(net: Any, cluster: Ray, runs: Path, **given: Any) -> Any:
    given = {"workers": 2, "strategy": "aeasgd", "epochs": 3, "threads": 1, **given}
    return shoal.fit(
        net, *data(), batch_size=8, verbose=0, cluster=cluster, run=str(runs), **given
    )


def events(run: str | Path) -> list[dict[str, Any]]:
    return list(read_events(Folder.at(str(run))))


def started(history: Any) -> list[dict[str, Any]]:
    found = events(history.run.url)
    return [event for event in found if event["kind"] == "worker_started"]


class Until(Watch):
    """Ends the run when so many were seen: a few epochs may be over before."""

    def __init__(self, root: Path, workers: int) -> None:
        super().__init__(root)
        self.workers = workers


class UntilAllTrain(Until):
    """Workers that exchanged."""

    def is_over(self, kinds: Counter[str]) -> bool:
        ranks = {record["rank"] for record in exchange_records(self.told)}
        return len(ranks) >= self.workers


class UntilStarted(Until):
    """Processes that began to work, whatever became of them."""

    def is_over(self, kinds: Counter[str]) -> bool:
        return kinds["worker_started"] >= self.workers


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[RayNode]:
    """A head with room for one worker, and an autoscaler for two nodes more.

    The nodes that it starts are real ones, on this machine.
    """
    pytest.importorskip("ray")
    host = own_address()
    port = free_port(host)
    wanted = {
        **NOTHING, "cluster_name": "growing", "max_workers": 2, "upscaling_speed": 1.0,
        "idle_timeout_minutes": 10, "head_node_type": "ray.head.default",
        "provider": {
            "type": "fake_multinode", "gcs_address": f"{host}:{port}",
            "launch_multiple": True,
        },
        "available_node_types": NODE_TYPES,
    }  # fmt: skip
    config = tmp_path / "autoscaler.json"
    config.write_text(json.dumps(wanted))
    with imported():
        node = RayNode(
            host, cpus=1,
            more=[f"--port={port}", f"--autoscaling-config={config}"],
            variables={"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"},
        )  # fmt: skip
        yield node
        node.close()


@pytest.mark.ray
def test_an_autoscaler_starts_nodes_for_the_most_workers(
    growing: RayNode, tmp_path: Path
) -> None:
    cluster, runs = Ray(address=growing.address, cpus=1, wait_s=90), tmp_path / "runs"
    history = train(
        model(), cluster, runs, workers=(1, 3), epochs=100_000,
        callbacks=[UntilAllTrain(runs, 3)],
    )  # fmt: skip
    epochs = len(history.epoch)
    assert history.run.summary().samples_committed == epochs * ROWS
    assert sorted(event["rank"] for event in started(history)) == [0, 1, 2]


@pytest.mark.ray
def test_the_wait_for_an_autoscaler_has_the_given_limit(
    growing: RayNode, tmp_path: Path
) -> None:
    cluster = Ray(address=growing.address, cpus=2, wait_s=8)
    with pytest.raises(ClusterError, match=r"room for 0 worker.* wait_s"):
        train(model(), cluster, tmp_path / "runs", workers=1)


class Grow(UntilAllTrain):
    """Adds nodes for the others once it trains."""

    def __init__(self, runs: Path, head: RayNode, workers: int) -> None:
        super().__init__(runs, workers)
        self.head, self.nodes = head, list[RayNode]()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self.nodes:
            for _ in range(self.workers - 1):
                node = RayNode(own_address(), self.head.address, cpus=1)
                self.nodes.append(node)
        super().on_epoch_end(epoch, logs)


@pytest.mark.ray
@pytest.mark.parametrize("strategy", ["aeasgd", "all_reduce"])
def test_workers_join_when_there_is_room(tmp_path: Path, strategy: str) -> None:
    """It begins with one at once; nodes for the others come while it trains."""
    pytest.importorskip("ray")
    runs, grow = tmp_path / "runs", None
    with imported():
        head = RayNode(own_address(), cpus=1)
        try:
            grow = Grow(runs, head, 3)
            cluster = Ray(address=head.address, cpus=1, wait_s=0)
            with pytest.warns(ShoalWarning, match="room for 1 of 3 workers; others"):
                history = train(
                    model(), cluster, runs, workers=(1, 3), epochs=100_000,
                    strategy=strategy, callbacks=[grow],
                )  # fmt: skip
        finally:
            for node in (*(grow.nodes if grow else ()), head):
                node.close()
    epochs = len(history.epoch)
    assert history.run.summary().samples_committed == epochs * ROWS
    assert sorted(event["rank"] for event in started(history)) == [0, 1, 2]


@pytest.mark.ray
def test_a_server_is_replaced_where_workers_have_all_the_room(tmp_path: Path) -> None:
    """The next workers have the places of those that ended with it."""
    pytest.importorskip("ray")
    with imported():
        node = RayNode(own_address(), cpus=2)
        try:
            cluster = Ray(address=node.address, cpus=1, wait_s=600)
            history = train(
                model(), cluster, tmp_path, epochs=100_000,
                callbacks=[KillServer(tmp_path), UntilStarted(tmp_path, 4)],
            )  # fmt: skip
            epochs = len(history.epoch)
            assert history.run.summary().samples_committed == epochs * ROWS
            assert len(started(history)) == 4
        finally:
            node.close()


class KillServer(Watch):
    """Once, after both workers have begun; another callback ends the run."""

    is_done = False

    def is_over(self, kinds: Counter[str]) -> bool:
        if not self.is_done and kinds["worker_started"] >= 2:
            children = psutil.Process().children()
            [server] = [child for child in children if listens(child)]
            server.kill()
            self.is_done = True
        return False


class Look(UntilStarted):
    """Keeps a variable of the environments of the workers, when all have begun."""

    def __init__(self, runs: Path, workers: int, node: RayNode, name: str) -> None:
        super().__init__(runs, workers)
        self.node, self.name = node, name
        self.found = list[str | None]()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.model.stop_training:
            workers: list[psutil.Process] = self.node.workers()
            self.found = [w.environ().get(self.name) for w in workers]


@pytest.mark.ray
def test_each_worker_sees_its_own_gpu(tmp_path: Path) -> None:
    """Ray counts GPUs that it is told of; a worker that trains must be given one."""
    pytest.importorskip("ray")
    with imported():
        node = RayNode(own_address(), cpus=2, more=["--num-gpus=2"])
        try:
            look = Look(tmp_path, 2, node, "CUDA_VISIBLE_DEVICES")
            cluster = Ray(address=node.address, gpus=1)
            history = train(
                model(), cluster, tmp_path, epochs=100_000, callbacks=[look]
            )
            epochs = len(history.epoch)
            assert history.run.summary().samples_committed == epochs * ROWS
            assert sorted(map(str, look.found)) == ["0", "1"]
        finally:
            node.close()


@pytest.mark.ray
def test_a_run_that_stops_waiting_frees_its_reservation(
    ray_node: RayNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connected by the script itself, Ray would keep it as long as that runs."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONBREAKPOINT", "")  # set by ray.init as well
    with own_sigterm():
        ray.init(address=ray_node.address, log_to_driver=False, logging_level="ERROR")
    try:
        group = importlib.import_module("shoal.launchers.ray_bundles").PlacementGroup

        def leave(*_: Any) -> bool:
            raise KeyboardInterrupt

        monkeypatch.setattr(group, "wait", leave)
        before = set(ray.util.placement_group_table())  # Ray keeps those of other tests
        with pytest.raises(KeyboardInterrupt):
            train(model(), Ray(), tmp_path)
        found = ray.util.placement_group_table().items()
        assert [one["state"] for key, one in found if key not in before] == ["REMOVED"]
    finally:
        ray.shutdown()


LOSS = (
    "import keras\ndef loss(y, p):\n    return keras.losses.binary_crossentropy(y, p)\n"
)


def wheel(folder: Path) -> Path:
    """A package that is installed nowhere, with a loss in it."""
    name = "shoal_test_losses-1.0"
    path = folder / f"{name}-py3-none-any.whl"
    head = "Metadata-Version: 2.1\nName: shoal-test-losses\nVersion: 1.0\n"
    tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("shoal_test_losses.py", LOSS)
        for what, text in (("METADATA", head), ("WHEEL", tag), ("RECORD", "")):
            file.writestr(f"{name}.dist-info/{what}", text)
    return path


def loss_of_package(y: Any, p: Any) -> Any:
    """Travels by value, and what it imports does not."""
    return importlib.import_module("shoal_test_losses").loss(y, p)


@pytest.mark.ray_long
@pytest.mark.timeout(600)
def test_requirements_are_installed_where_workers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script's own process has the module as well, and nobody else.

    Not for `make ray`: Ray copies all of the environment first, two minutes here.
    """
    pytest.importorskip("ray")
    with imported():
        node = RayNode(own_address(), cpus=2)
        try:
            own = tmp_path / "own"
            own.mkdir()
            (own / "shoal_test_losses.py").write_text(LOSS)
            monkeypatch.syspath_prepend(str(own))
            net = model()
            importlib.import_module("shoal_test_losses")
            shutil.rmtree(own)  # Ray's processes look where this one does
            net.compile(keras.optimizers.SGD(0.1), loss_of_package)
            with pytest.raises(ShoalError, match="shoal_test_losses"):
                train(net, Ray(address=node.address), tmp_path / "without")
            with_it = Ray(address=node.address, pip=(str(wheel(tmp_path)),))
            history = train(net, with_it, tmp_path / "with")
            assert history.run.summary().samples_committed == 3 * ROWS
        finally:
            node.close()
