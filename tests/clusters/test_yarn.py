"""Workers by the count of a ResourceManager: a real server with its JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import keras
import numpy as np
import pytest

import shoal
from shoal.clusters import Yarn
from shoal.errors import ClusterError, ConfigError, PlanError

METRICS = {"appsRunning": 1, "activeNodes": 3, "lostNodes": 0, "totalVirtualCores": 24}
Answer = Callable[..., str]


@pytest.fixture
def manager() -> Iterator[Answer]:
    """Serves one text at the path of the metrics; returns its address."""
    said: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path == "/ws/v1/cluster/metrics"
            self.send_response(said["status"] if is_known else 404)
            self.end_headers()
            self.wfile.write(said["text"] if is_known else b"")

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def say(text: bytes, status: int = 200) -> str:
        said.update(text=text, status=status)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield say
    server.shutdown()
    thread.join()
    server.server_close()


def metrics(**changed: Any) -> bytes:
    return json.dumps({"clusterMetrics": METRICS | changed}).encode()


@pytest.mark.parametrize(
    ("given", "workers"),
    [
        (Yarn(), 24),
        (Yarn(max_workers=16), 16),
        (Yarn(cores_each=5), 3),
        (Yarn(cores_each=4), 6),
    ],
)
def test_nodes_times_cores(manager: Answer, given: Yarn, workers: int) -> None:
    address = manager(metrics())
    assert replace(given, address=address).count() == workers
    assert given.count(f"{address}/") == workers


@pytest.mark.parametrize(
    ("text", "status"),
    [(b"<html>", 200), (b"[]", 200), (b"{}", 200), (metrics(), 503)],
)
def test_an_address_without_a_resource_manager(
    manager: Answer, text: bytes, status: int
) -> None:
    with pytest.raises(ClusterError, match="ResourceManager"):
        Yarn(address=manager(text, status)).count()


def test_a_cluster_without_nodes(manager: Answer) -> None:
    with pytest.raises(ClusterError, match="0 active nodes with 0 cores"):
        Yarn(address=manager(metrics(activeNodes=0, totalVirtualCores=0))).count()


def test_no_server_answers(manager: Answer) -> None:
    with pytest.raises(ClusterError, match="gave no answer"):
        Yarn(address="http://127.0.0.1:9").count()
    with pytest.raises(ConfigError, match="is not a ResourceManager's address"):
        Yarn(address="master:8088").count()
    with pytest.raises(ConfigError, match="max_workers=0"):
        Yarn(max_workers=0).count()


def test_a_plan_counts(manager: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    x = np.zeros((4096, 4), "float32")
    address = manager(metrics(activeNodes=2, totalVirtualCores=6))
    found = shoal.plan(net, x, x[:, :1], workers=Yarn(address=address))
    assert found.workers == 6
    monkeypatch.setenv("SHOAL_YARN", address)
    assert shoal.plan(net, x, x[:, :1], workers="yarn").workers == 6


@pytest.mark.parametrize("workers", ["yarn", Yarn(max_workers=2)])
def test_a_call_that_is_sent_elsewhere_is_not_counted_here(workers: Any) -> None:
    """It was written into the job's script, as text."""
    x = np.zeros((4, 2), "float32")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(PlanError, match="YARN counts other nodes"):
        shoal.fit(model, x, x[:, :1], cluster="ray://192.0.2.1:1", workers=workers)
