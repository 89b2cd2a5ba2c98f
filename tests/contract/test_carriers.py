"""A carrier of agents that call the driver is a file and a line, tried with a toy one.

The toy engine runs tasks as processes of this machine, which know nothing but a ticket
and pull over TLS. They say that their node is another one, so that data travels, too.
"""

from __future__ import annotations

import re
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import shoal
from shoal.clusters.finding import registry
from shoal.errors import ShoalError
from shoal.launchers import agent_loop, agent_messages, pull_carrier
from shoal.launchers.agent_loop import Ticket, serve
from shoal.launchers.agent_messages import pack, parse
from shoal.launchers.base import Exit, Role
from shoal.launchers.carrier import CallResult
from shoal.launchers.node_agent import AgentReport, Arrival, Listening, Memory
from shoal.launchers.remote import RemoteLauncher
from shoal.launchers.shared import SharedBlob
from shoal.runs.events import read_events
from shoal.runs.folder import Folder
from shoal.wire import accepting
from shoal.wire.accepting import accept
from shoal.wire.frames import BadFrame, Link
from tests.contract.test_plugin import install, site
from tests.habits.cases import data, make_model
from tests.support.watch import Watch

__all__ = ["site"]

pytestmark = pytest.mark.process

TOY = '''
"""Tasks of a toy engine: processes of this machine, which get a ticket and no more."""
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from typing import ClassVar

from shoal.clusters.base import Allocation, Cluster
from shoal.clusters.local import read_machine
from shoal.launchers.pull_carrier import PullCarrier
from shoal.launchers.remote import RemoteLauncher
from shoal.wire.tls import make_identity

TEXT = (
    "import sys; sys.path[:] = sys.argv[1].split(':')\\n"
    "from shoal.launchers.agent_loop import Ticket, serve\\n"
    "print(serve(Ticket.from_text(sys.stdin.readline()), sys.argv[2]))"
)
tasks = []
nodes = ["elsewhere"]  # of the tasks, in turn
host = ["127.0.0.1"]
text = [TEXT]


class Task:
    def __init__(self, ticket):
        self.log = tempfile.TemporaryFile("w+")
        node = nodes[len(tasks) % len(nodes)]
        words = [sys.executable, "-c", text[0], ":".join(sys.path), node]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=self.log, stderr=self.log, text=True
        )
        self.process.stdin.write(ticket.to_text())
        self.process.stdin.close()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


class Tasks(PullCarrier):
    def start_task(self, ticket, avoided):
        tasks.append(Task(ticket))
        tasks[-1].ticket = ticket
        return tasks[-1]

    def failure(self, task):
        if task.process.poll() is None:
            return ""
        task.log.seek(0)
        last = (task.log.read().strip().splitlines() or [""])[-1]
        return f"status {task.process.returncode}, {last}"

    def end_task(self, task):
        task.end()


class Toy(Cluster):
    name: ClassVar[str] = "tasks"

    def look(self, backend):
        return read_machine(backend)

    @contextmanager
    def open(self, asked):
        def open_launcher(blob):
            carrier = Tasks(
                host=host[0], number=blob.descriptor, backend=asked.backend,
                identity=make_identity(), limit_s=60.0,
            )
            return RemoteLauncher(carrier, blob, asked.backend, {})

        yield Allocation(
            workers=asked.most, host=host[0], open_launcher=open_launcher
        )
'''
LINE = "tasks = shoal_toy_tasks:Toy"


@pytest.fixture
def toy(site: Path) -> Iterator[Any]:
    """The module of the toy engine; all of its tasks are over in the end."""
    install(site, "shoal_toy_tasks", LINE, TOY, group="shoal.clusters")
    registry.load("tasks")
    module = sys.modules["shoal_toy_tasks"]
    yield module
    left = [task for task in module.tasks if task.process.returncode is None]
    for task in left:
        task.end()  # a test that failed, or does not end its tasks, harms no other
    assert not left


class Bench:
    """A launcher over the toy carrier, without a run."""

    def __init__(self, toy: Any, **options: Any) -> None:
        from shoal.wire.tls import make_identity

        self.identity = make_identity()
        self.blob = SharedBlob()
        self.carrier = toy.Tasks(
            host="127.0.0.1", number=self.blob.descriptor, backend="",
            identity=self.identity, **{"limit_s": 60.0, **options},
        )  # fmt: skip
        self.launcher = RemoteLauncher(self.carrier, self.blob, "", {"TOY": "yes"})
        self.lines: list[str] = []
        self.launcher.echo(lambda name, line: self.lines.append(f"{name}: {line}"))

    def until(self, is_so: Callable[[], Any]) -> Any:
        """Polls until something is so; ends of processes are kept."""
        ended: dict[str, Exit] = {}
        while not (found := is_so()):
            ended |= self.launcher.poll()
        return found

    def end_of(self, token: str) -> Exit:
        while True:
            found = self.launcher.poll()
            if token in found:
                return found[token]

    def start(self, code: str) -> str:
        self.launcher.share()  # the data is complete; most often there is none
        token = self.launcher.start(Role(target="builtins:exec", name="worker-0"))
        self.launcher.give(token, code)
        return token

    def close(self) -> None:
        self.launcher.close()
        self.blob.close()


@pytest.fixture
def bench(toy: Any) -> Iterator[Bench]:
    found = Bench(toy)
    yield found
    found.close()


def workers_of(toy: Any) -> list[psutil.Process]:
    """Processes that the agents have started."""
    found: list[psutil.Process] = []
    for task in toy.tasks:
        if task.process.poll() is None:
            found += psutil.Process(task.process.pid).children()
    return found


def gone(processes: list[psutil.Process]) -> bool:
    return psutil.wait_procs(processes, timeout=30)[1] == []


# ------------------------------------------------------------------ whole runs


def test_fit_trains_on_its_workers(toy: Any) -> None:
    x, y = data(96)
    usual: dict[str, Any] = {
        "batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0
    }  # fmt: skip
    ours, plain = make_model(), make_model()
    shoal.fit(ours, x, y, cluster="tasks", workers=2, run=False, **usual)
    assert len(toy.tasks) == 2
    plain.fit(x, y, **usual)
    for mine, other in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5)


class Killer(Watch):
    """Kills an agent, and trains until its worker is replaced."""

    def __init__(self, toy: Any, root: Path) -> None:
        super().__init__(root)
        self.toy, self.seen = toy, 0
        self.workers: list[psutil.Process] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        if self.seen == 5:
            self.workers = workers_of(self.toy)
            self.toy.tasks[0].process.kill()

    def is_over(self, kinds: Counter[str]) -> bool:
        return kinds["worker_replaced"] > 0


@pytest.mark.ray  # longer than a test of `make test` may be
def test_a_lost_agent_is_replaced_and_every_sample_counts_once(
    toy: Any, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    killer = Killer(toy, runs)
    x, y = data(320)
    history = shoal.fit(
        make_model(), x, y, batch_size=16, epochs=9999, strategy="aeasgd", workers=2,
        cluster="tasks", run=str(runs), verbose=0, callbacks=[killer],
    )  # fmt: skip
    epochs = len(history.history["loss"])
    assert history.run.summary().samples_committed == epochs * 320
    kinds = [event["kind"] for event in read_events(Folder.at(history.run.url))]
    assert kinds.count("worker_lost") == 1
    assert kinds.count("worker_replaced") >= 1
    assert len(toy.tasks) == 3
    assert gone(killer.workers)


def test_an_agent_that_cannot_start_gives_its_error_to_the_user(toy: Any) -> None:
    toy.text[0] = "import sys; sys.exit('there is no shoal on this node')"
    x, y = data(96)
    with pytest.raises(ShoalError, match="there is no shoal on this node"):
        shoal.fit(
            make_model(), x, y, cluster="tasks", workers=1, run=False, verbose=0,
            batch_size=16,
        )  # fmt: skip


# ---------------------------------------------------------- agents, one by one


def test_a_process_is_started_heard_and_ended(bench: Bench) -> None:
    code = "import os; print('hello', os.environ['TOY'], flush=True); os._exit(3)"
    end = bench.end_of(bench.start(code))
    assert (end.name, end.code) == ("worker-0", 3)
    assert bench.lines == ["worker-0: hello yes"]


def test_a_process_that_is_stopped_ends_and_its_agent_serves_another(
    bench: Bench, toy: Any
) -> None:
    token = bench.start("print('there', flush=True); import time; time.sleep(600)")
    bench.until(lambda: bench.lines)
    bench.launcher.stop(token)
    assert bench.end_of(token).reason.startswith("killed by SIGKILL")
    bench.end_of(bench.start("raise SystemExit"))
    assert len(toy.tasks) == 1


def test_a_killed_agent_is_lost_at_once_with_its_process(
    bench: Bench, toy: Any
) -> None:
    token = bench.start("print('there', flush=True); import time; time.sleep(600)")
    bench.until(lambda: bench.lines)
    workers = workers_of(toy)
    toy.tasks[0].process.kill()
    assert "hung up" in bench.end_of(token).reason
    assert gone(workers)


def test_a_silent_agent_is_lost_and_leaves_no_process(bench: Bench, toy: Any) -> None:
    token = bench.start("print('there', flush=True); import time; time.sleep(600)")
    bench.until(lambda: bench.lines)
    workers = workers_of(toy)
    toy.tasks[0].process.send_signal(signal.SIGSTOP)
    assert "has said nothing for 6 s" in bench.end_of(token).reason
    assert gone(workers)


def test_error_of_a_failed_task_has_its_cause(bench: Bench, toy: Any) -> None:
    toy.text[0] = "import sys; sys.exit('no room for me')"
    end = bench.end_of(bench.start("pass"))
    assert end.reason == "a node could not start an agent: status 1, no room for me"


def test_data_is_written_on_the_other_node(bench: Bench) -> None:
    with bench.blob.allocate(40 << 20) as memory:
        memory[-5:] = b"fives"
    number = bench.blob.descriptor
    code = f"import os; print(os.pread({number}, 9, {(40 << 20) - 5}), flush=True)"
    token = bench.start(code)
    bench.until(lambda: bench.lines)
    assert bench.lines == ["worker-0: b'fives'"]
    bench.launcher.stop(token)


def test_the_processor_time_of_a_process_is_told(bench: Bench) -> None:
    """A start that uses the processor is slow, and does not hang."""
    token = bench.start("while True: pass")
    first = bench.until(lambda: bench.launcher.spent_s(token))
    bench.until(lambda: (bench.launcher.spent_s(token) or 0.0) > first)
    bench.launcher.stop(token)
    bench.end_of(token)
    assert bench.launcher.spent_s(token) is None


def test_close_ends_all(toy: Any) -> None:
    bench = Bench(toy)
    bench.start("print('there', flush=True); import time; time.sleep(600)")
    bench.start("pass")
    bench.until(lambda: bench.lines)
    workers = workers_of(toy)
    bench.close()
    assert gone(workers)


# ----------------------------------------------------------- who may connect


def test_a_caller_without_the_key_gets_no_answer(bench: Bench, toy: Any) -> None:
    bench.start("pass")
    bench.until(lambda: toy.tasks)
    certificate = bench.identity.certificate
    with pytest.raises(ConnectionResetError, match="closed the connection"):
        Link(bench.carrier.address, b"x" * 32, certificate=certificate)
    with pytest.raises((ConnectionResetError, BadFrame)):
        Link(bench.carrier.address, toy.tasks[0].ticket.key)
    bench.until(lambda: "2 caller(s) were turned away" in bench.carrier.room)


@pytest.mark.parametrize(
    "said",
    ["{'kind': 'arrive', 'node': 7}", "{'kind': 'hello'}", "{'kind': 'a'}, b'x'"],
)
def test_an_agent_that_sends_invalid_messages_is_dropped(
    bench: Bench, toy: Any, said: str
) -> None:
    toy.text[0] = (
        "import sys, time; sys.path[:] = sys.argv[1].split(':')\n"
        "from shoal.launchers.agent_loop import Ticket\n"
        "from shoal.wire.frames import Link\n"
        "t = Ticket.from_text(sys.stdin.readline())\n"
        "link = Link((t.host, t.port), t.key, certificate=t.certificate)\n"
        f"link.send({said})\n"
        "time.sleep(600)"
    )
    assert "is none of ours" in bench.end_of(bench.start("pass")).reason


def test_a_ticket_admits_one_agent(bench: Bench, toy: Any) -> None:
    first = bench.start("print('there', flush=True); import time; time.sleep(600)")
    bench.until(lambda: bench.lines)
    second = toy.Task(toy.tasks[0].ticket)
    bench.until(lambda: len(bench.carrier._remotes) == 2)
    bench.start("pass")
    assert len(toy.tasks) == 2  # it is kept waiting, and another task was started
    assert second.process.poll() is None
    toy.tasks[0].process.kill()
    bench.end_of(first)
    assert second.process.wait(30) == 0  # its engine has the room at once
    second.end()


def test_a_task_that_was_run_twice_may_serve_the_next_process(toy: Any) -> None:
    bench = Bench(toy, reuses_tasks=True)
    bench.start("print('there', flush=True); import time; time.sleep(600)")
    bench.until(lambda: bench.lines)
    second = toy.Task(toy.tasks[0].ticket)
    bench.until(lambda: bench.carrier._spares)
    bench.end_of(bench.start("print('again', flush=True); import os; os._exit(0)"))
    assert bench.lines[-1] == "worker-0: again"
    assert len(toy.tasks) == 1
    bench.close()
    assert second.process.wait(30) == 0
    second.end()


def test_an_agent_ends_when_its_driver_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_loop, "ALONE_S", 0.5)
    key = b"k" * 32
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ticket = Ticket(
            host="127.0.0.1", port=listener.getsockname()[1], key=key,
            certificate=None, number=77, backend="",
        )  # fmt: skip
        said: list[str] = []
        agent = threading.Thread(target=lambda: said.append(serve(ticket)))
        agent.start()
        connection, _ = listener.accept()
        name, link = accept(connection, {"other": b"o" * 32, "this": key})
        agent.join()
        link.close()
    assert name == "this"
    assert said == ["the driver said nothing for 0.5 s"]


def test_the_driver_unpickles_nothing() -> None:
    for module in (pull_carrier, agent_messages, accepting):
        text = Path(module.__file__ or "").read_text()
        assert not re.search(r"\bloads?\(|import pickle", text)


# ------------------------------------------------------------------- messages

MEMORY = Memory(pid=7, descriptor=3, mark=(1, 2))


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("arrive", Arrival(node="a", node_id="b", versions={"k": "1"}, memory=MEMORY)),
        ("start", MEMORY),
        ("listen", Listening(port=7, descriptor=3)),
        ("give", None),
        ("report", AgentReport(
            lines=[("t", "\u20ac")], exits={"t": Exit(name="t", code=-9, reason="r")},
            spent_ms={"u": 70},
        )),
    ],
)  # fmt: skip
def test_messages_of_an_agent_are_json(method: str, value: Any) -> None:
    assert parse(method, pack(value)) == value


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("arrive", {"node": "a"}), ("arrive", {"node": "a", "versions": 7}),
        ("start", {"memory": [1, 2, 3]}), ("start", {"memory": ["a", 2, 3, 4]}),
        ("listen", {"port": "7", "descriptor": 3}), ("listen", {"port": 7}),
        ("report", {"lines": [["a"]], "exits": {}}),
        ("report", {"lines": [], "exits": {"a": [1, 2, 3, 4]}}), ("report", {}),
        ("report", {"lines": [], "exits": {}, "spent_ms": {"a": "7"}}),
    ],
)  # fmt: skip
def test_invalid_messages_of_an_agent_are_refused(
    method: str, told: dict[str, Any]
) -> None:
    with pytest.raises(BadFrame, match="with nonsense"):
        parse(method, told)


def test_a_call_to_an_agent_that_was_let_go_is_lost(bench: Bench) -> None:
    call = bench.carrier.call("nobody", "report")
    assert bench.carrier.ready([call], 0.0) == {call: CallResult(lost="was let go")}
