"""Which workers count as lost when processes end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shoal.engine.controller.start_progress import MOST_TIMES, STILL_S
from shoal.engine.controller.supervisor import LAST_WORDS_S, WorkerSupervisor
from shoal.engine.coordination.restart_policy import SETTLED_S, RestartPolicy
from shoal.engine.environment import SYSTEM
from shoal.engine.transport.heartbeat import start_limit_s
from shoal.engine.transport.messages.server_to_controller import Joined
from shoal.launchers.base import Exit
from tests.support.environments import SettableClock, SettableTime


def test_workers_that_end_with_their_server_do_not_count_as_lost() -> None:
    """All have ended at one look, with no replacement left for workers."""
    ended = [Exit(name=name, code=1, reason="exited") for name in ("w0", "w1", "s")]
    pool: Any = SimpleNamespace(
        server="s",
        environment=SYSTEM,
        worker=lambda hint: f"w{hint}",
        age_s=lambda _: 0.0,
        spent_s=lambda _: None,
        longest_join_s=0.0,
        give=lambda *_: None,
        is_waiting=lambda _: False,
        poll=lambda: {gone.name: gone for gone in ended},
    )
    told: list[str] = []
    observer: Any = SimpleNamespace(on_event=lambda kind, **_: told.append(kind))
    policy = RestartPolicy(max_restarts=0, min_workers=2)
    supervisor = WorkerSupervisor(
        pool, policy, lambda _: None, observer, lambda *_, **__: None
    )
    spec: Any = None
    supervisor.give(2, lambda hint, token: spec)
    assert list(supervisor.watch()) == ["s"]
    assert told == []


def test_a_worker_that_ends_before_its_servers_end_is_seen_is_not_lost() -> None:
    """Its own end comes first; that of a server is read from the connection then."""
    stand = begun()
    stand.ended["w1"] = Exit(name="w1", code=0, reason="exited")
    stand.supervisor.watch()
    assert stand.supervisor.has_ended
    assert stand.reasons() == []
    stand.supervisor.recall()  # the server was lost
    stand.watch(5.0)
    assert stand.reasons() == []


def test_a_worker_that_ended_is_lost_when_no_message_is_left() -> None:
    stand = begun()
    stand.ended["w1"] = Exit(name="w1", code=0, reason="exited")
    for _ in range(3):
        stand.supervisor.watch(is_idle=False)
    assert stand.reasons() == []
    stand.supervisor.watch()
    assert stand.reasons() == ["exited"]
    # Messages of many workers may leave no moment without one.
    stand.ended["w2"] = Exit(name="w2", code=0, reason="exited")
    stand.supervisor.watch(is_idle=False)
    stand.clock.now += LAST_WORDS_S + 0.1
    stand.supervisor.watch(is_idle=False)
    assert stand.reasons() == ["exited", "exited"]


def test_a_late_count_keeps_the_reason_of_the_process() -> None:
    """Its connection ended first; a long callback delays the count."""
    stand = begun()
    stand.supervisor.left(0, "closed", is_hung=False)
    reason = "killed by SIGKILL"
    stand.ended["w1"] = Exit(name="w1", code=-9, reason=reason)
    stand.supervisor.watch(is_idle=False)
    stand.clock.now += 60.0
    stand.supervisor.watch(is_idle=False)
    assert stand.reasons() == [reason]


def test_each_worker_that_ended_has_its_own_time() -> None:
    stand = begun()
    stand.ended["w1"] = Exit(name="w1", code=1, reason="first")
    stand.supervisor.watch(is_idle=False)
    stand.clock.now += LAST_WORDS_S
    stand.ended["w2"] = Exit(name="w2", code=1, reason="second")
    stand.supervisor.watch(is_idle=False)
    stand.clock.now += 0.1
    stand.supervisor.watch(is_idle=False)
    assert stand.reasons() == ["first"]
    stand.supervisor.watch(is_idle=False)
    assert stand.reasons() == ["first"]
    stand.supervisor.watch()
    assert stand.reasons() == ["first", "second"]


def test_a_loss_just_before_the_end_is_recorded() -> None:
    stand = begun()
    stand.ended["w1"] = Exit(name="w1", code=-9, reason="killed by SIGKILL")
    stand.ended["w2"] = Exit(name="w2", code=0, reason="exited")
    stand.supervisor.watch()
    stand.supervisor.dismiss()
    stand.watch(3.0)
    assert stand.reasons() == ["killed by SIGKILL"]


# ------------------------------------------------ who starts late, or never


def joined(token: str, rank: int) -> Joined:
    return Joined(rank=rank, incarnation=1, pid=1, node="a", token=token)


class Stand:
    """A pool without processes, and a clock that the test moves."""

    server = "s"
    longest_join_s = 0.0

    def __init__(self, workers: int = 2, growth: int = 0) -> None:
        self.clock = SettableClock(1000.0)
        self.environment = SettableTime(self.clock)
        self.made, self.told = 0, list[tuple[str, Any]]()
        self.ended: dict[str, Exit] = {}
        self.warm, self.waiting = set[str](), set[str]()
        self.given = list[str]()
        self.paces = dict[str, float]()
        """Processor time of a process in a second."""
        policy, observer = RestartPolicy(max_restarts=99), SimpleNamespace()
        observer.on_event = lambda kind, **fields: self.told.append((kind, fields))
        pool: Any = self
        watcher: Any = observer
        spec: Any = None
        self.supervisor = WorkerSupervisor(
            pool, policy, lambda _: None, watcher, lambda *_, **__: None
        )
        self.supervisor.give(workers, lambda hint, token: spec, growth)

    def worker(self, hint: int) -> str:
        self.made += 1
        return f"w{self.made}"

    def awaited(self, hint: int) -> str:
        token = f"later-{hint}"
        self.waiting.add(token)
        return token

    def age_s(self, token: str) -> float:
        return 1000.0 if token in self.warm else 0.0

    def spent_s(self, token: str) -> float | None:
        pace = self.paces.get(token)
        return None if pace is None else pace * self.clock.now

    def give(self, token: str, *_: object) -> None:
        self.given.append(token)

    def is_waiting(self, token: str) -> bool:
        return token in self.waiting

    def stop(self, token: str) -> None:
        reason = "killed by SIGKILL"
        self.ended[token] = Exit(name=token, code=-9, reason=reason)

    def poll(self) -> dict[str, Exit]:
        ended, self.ended = self.ended, {}
        return ended

    def works(self, token: str, rank: int) -> None:
        self.supervisor.joined(joined(token, rank))
        self.supervisor.ready(rank)

    def watch(self, seconds: float) -> None:
        """Looks ten times a second."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now += 0.1
            self.supervisor.watch()

    def reasons(self) -> list[str]:
        return [fields["reason"] for kind, fields in self.told if kind == "worker_lost"]


def begun() -> Stand:
    """Two workers, one of which works after 2 s."""
    stand = Stand()
    stand.watch(2.0)
    stand.works("w1", 0)
    return stand


def test_a_worker_that_never_starts_is_replaced() -> None:
    """Once others have shown how long a start takes; before, no limit is known."""
    stand = Stand()
    stand.watch(100.0)
    assert stand.reasons() == []
    stand.works("w1", 0)
    stand.watch(start_limit_s(100.0) - 102.0)
    assert stand.reasons() == []
    stand.watch(4.0)
    [reason] = stand.reasons()
    assert reason.startswith("hung: not ready after 40")
    assert stand.made == 3


def test_a_slow_start_on_a_busy_machine_is_no_hang() -> None:
    """Its imports were not measured: other workers had done theirs while they waited.

    Before, replacements were killed one after the other, and the run with them.
    """
    stand = Stand(workers=1)
    stand.watch(0.3)
    stand.works("w1", 0)
    stand.stop("w1")
    limit_s = start_limit_s(0.4)
    stand.paces = {"w2": 0.02}
    stand.watch(4 * limit_s)
    assert stand.made == 2
    stand.paces = {"w2": 0.0}  # it is stopped now
    stand.watch(2.0)
    assert stand.made == 2
    stand.watch(STILL_S)
    assert stand.reasons()[1].startswith("hung: not ready after 6")


def test_a_start_that_computes_for_ever_ends() -> None:
    stand = Stand(workers=1)
    stand.watch(0.3)
    stand.works("w1", 0)
    stand.stop("w1")
    stand.paces = {"w2": 1.0, "w3": 1.0}
    stand.watch((MOST_TIMES - 1) * start_limit_s(0.4))
    assert stand.made == 2
    stand.watch(2 * start_limit_s(0.4))
    assert stand.made == 3


def test_a_worker_that_waits_for_room_is_not_dropped() -> None:
    """Its launcher decides how long it may wait."""
    stand = Stand()
    stand.waiting.add("w2")
    stand.watch(2.0)
    stand.works("w1", 0)
    stand.watch(500.0)
    assert stand.reasons() == []
    stand.waiting.clear()
    stand.watch(start_limit_s(2.0) + 1.0)
    assert len(stand.reasons()) == 1


def test_a_worker_that_joined_and_never_works_is_replaced() -> None:
    stand = begun()
    stand.supervisor.joined(joined("w2", 1))
    stand.watch(20.0)
    assert [reason.partition(":")[0] for reason in stand.reasons()] == ["hung"]


def test_a_warm_process_has_a_shorter_start_limit() -> None:
    """It has imported all it needs: its start takes no longer than that of others."""
    stand = Stand(workers=1)
    stand.watch(11.0)
    stand.works("w1", 0)
    stand.warm = {"w2"}  # a spare process, which hangs
    stand.stop("w1")
    stand.watch(start_limit_s(11.0, is_warm=True) - 0.5)
    assert stand.made == 2
    stand.watch(2.0)
    assert stand.reasons()[1].startswith("hung: not ready after 16")
    stand.watch(start_limit_s(11.0) - 2.0)  # the next one is not
    assert stand.made == 3


def test_a_session_knows_how_long_a_process_takes_to_start() -> None:
    """Workers of this run were started before; the next one was not."""
    stand = Stand(workers=1)
    stand.longest_join_s = 4.0  # in the run before
    stand.watch(0.3)
    stand.works("w1", 0)
    stand.stop("w1")
    stand.watch(start_limit_s(4.0) - 0.5)
    assert stand.made == 2
    stand.watch(2.0)
    assert stand.reasons()[1].startswith("hung: not ready after 21")


def test_workers_of_a_session_may_take_as_long_as_the_model_needs() -> None:
    """Their processes run already, but the time to compile this model is not known."""
    stand = Stand()
    stand.longest_join_s, stand.warm = 0.2, {"w1", "w2"}
    stand.watch(100.0)
    stand.works("w1", 0)
    stand.watch(100.0)
    assert stand.reasons() == []


def test_a_worker_that_was_silent_as_its_node_is_lost_has_that_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server notices the silence first; nobody can end the process there."""
    stand = Stand()
    stand.works("w1", 0)
    monkeypatch.setattr(stand, "stop", lambda token: None)
    stand.supervisor.left(0, "hung: silent for more than 3.1 s", is_hung=True)
    stand.watch(3.0)
    reason = "node b is gone: it has said nothing for 6 s"
    stand.ended["w1"] = Exit(name="w1", code=-9, reason=reason, is_lost=True)
    stand.watch(0.3)
    assert stand.reasons() == [reason]


def test_a_start_reported_after_a_pause_counts_without_the_pause() -> None:
    """A callback took five minutes, and the worker had begun before."""
    stand = Stand()
    stand.watch(2.0)
    stand.clock.now += 300.0
    stand.works("w1", 0)
    assert stand.supervisor.start_limit_s == pytest.approx(start_limit_s(2.0))


def test_a_pause_of_the_controller_drops_no_worker() -> None:
    """A callback took an hour; the worker may have reported meanwhile."""
    stand = begun()
    stand.clock.now += 3600.0
    stand.watch(1.0)
    stand.works("w2", 1)
    stand.watch(100.0)
    assert stand.reasons() == []


def test_a_rank_waits_longer_until_its_process_has_worked_for_a_while() -> None:
    stand = Stand(workers=1)
    waits = list[float]()
    for life_s in (1.0, 1.0, 1.0, 1.0, SETTLED_S + 1.0):
        stand.works(f"w{stand.made}", 0)
        stand.watch(life_s)
        made, died = stand.made, stand.clock.now
        stand.stop(f"w{made}")
        while stand.made == made:
            stand.watch(0.1)
        waits.append(round(stand.clock.now - died))
    assert waits == [0, 1, 2, 4, 0]


# ---------------------------------------------- who comes when there is room


def grown() -> Stand:
    """One worker that works, and two more for which there is no room yet."""
    stand = Stand(workers=1, growth=2)
    stand.watch(2.0)
    stand.works("w1", 0)
    stand.watch(500.0)
    return stand


def test_an_awaited_worker_gets_its_spec_when_there_is_room() -> None:
    stand = grown()
    assert (stand.given, stand.reasons()) == (["w1"], [])
    assert stand.supervisor.living() == ["w1"]
    stand.waiting.remove("later-2")
    stand.watch(1.0)
    assert stand.given == ["w1", "later-2"]
    stand.works("later-2", 2)
    assert stand.supervisor.workers() == {0: "w1", 2: "later-2"}
    stand.stop("later-2")  # from here on it is a worker like any other
    stand.watch(1.0)
    assert stand.reasons() == ["killed by SIGKILL"]
    assert stand.given == ["w1", "later-2", "w2"]


def test_an_awaited_worker_that_never_starts_does_not_count_as_lost() -> None:
    stand = grown()
    stand.stop("later-1")
    stand.watch(1.0)
    text = "later-1 does not join: killed by SIGKILL"
    assert stand.told[1:] == [("warning", {"text": text})]
    assert stand.made == 1


@pytest.mark.parametrize("end", ["recall", "dismiss"])
def test_awaited_workers_are_stopped_at_the_end_of_the_run(end: str) -> None:
    stand = grown()
    getattr(stand.supervisor, end)()
    assert {"later-1", "later-2"} <= stand.ended.keys()
    stand.waiting.clear()
    stand.watch(1.0)
    assert stand.given == ["w1"]
    assert stand.reasons() == []
