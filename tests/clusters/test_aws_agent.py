"""The agent of a node: what it decides, and what it does with a folder for a bucket."""

from __future__ import annotations

import ast
import json
import os
import sys
import time
import urllib.request
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.clusters.aws import node_agent, node_forming
from shoal.clusters.aws.joining import agent_text, join_of
from shoal.clusters.aws.members import joined_of
from shoal.clusters.aws.node_decisions import (
    LONG_S,
    MOST_TRIES,
    PAUSE_S,
    SOON_S,
    Me,
    Seen,
    Step,
    cluster_of,
    next_step,
    pause_s,
)
from shoal.clusters.aws.ways_in import refreshed
from tests.clusters.test_aws_members import MASTER, instance, known, member, said

HEAD = "10.0.0.9:6379"
SHORT = "We currently do not have sufficient capacity"


def object_of(number: int, role: str = "worker", **more: Any) -> Any:
    return json.loads(said(number, role, **more))


def me(number: int, role: str = "worker") -> Me:
    return Me(f"i-{number:08x}", f"10.0.0.{number}", role)


def join(**nodes: int) -> dict[str, Any]:
    return {
        "name": "prod", "backend": "jax", "head": "10.0.0.9",
        "port": 6379, "python": None, "environment": "0a", "requirements": ["x==1"],
        "archive": "environments/0a.tar", "options": [], "files": ["shoal.whl"],
        "nodes": nodes,
    }  # fmt: skip


# ------------------------------------------------------------------------ decisions

KINDS = ("ready", "booting", "forged", "none")
CHANGED = {"booting": {"state": "booting"}, "forged": {"address": "6.6.6.6"}}
MACHINES = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from(KINDS)),
    unique_by=lambda one: one[0],
    max_size=6,
)


@given(st.lists(st.tuples(MACHINES, st.sets(st.integers(1, 9))), max_size=6))
@settings(max_examples=150, deadline=None)
def test_a_number_is_of_one_node_for_ever(
    steps: list[tuple[list[tuple[int, str]], set[int]]],
) -> None:
    """Whatever comes and goes, and however often an `up` numbers nodes between."""
    before: Any = None
    whose: dict[int, str] = {}
    told = join()
    for machines, started in steps:
        found = [instance(n, "master" if n == 9 else "worker") for n, _ in machines]
        objects: dict[str, Any] = {}
        for number, kind in machines:
            role = "master" if number == 9 else "worker"
            if kind != "none":
                objects[f"i-{number:08x}"] = object_of(
                    number, role, **CHANGED.get(kind, {})
                )
        after = cluster_of(found, objects, told, before)
        listed = [one["instance"] for one in after["nodes"]]
        ready = [f"i-{n:08x}" for n, kind in machines if kind == "ready"]
        assert sorted(listed) == sorted(ready)
        assert "i-00000009" not in listed[1:]  # the master is first
        for one in after["nodes"]:
            assert whose.setdefault(one["number"], one["instance"]) == one["instance"]
        numbers = [one["number"] for one in after["nodes"]]
        assert len(set(numbers)) == len(numbers)
        assert cluster_of(found, objects, told, after) == after
        before = json.loads(json.dumps(after))
        # An `up` takes nodes over by the numbers that they have.
        told = join(**{
            one["instance"]: one["number"] for one in after["nodes"]
            if int(one["instance"][2:], 16) in started
        })  # fmt: skip


@given(
    st.booleans(), st.booleans(), st.sampled_from(["", HEAD, "10.0.0.8:1"]),
    st.lists(st.sampled_from(["a", "b"]), max_size=5),
    st.sampled_from(["master", "worker"]), st.booleans(), st.booleans(),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_one_owner_starts_a_node(
    has_join: bool,
    is_installed: bool,
    joined: str,
    failures: list[str],
    role: str,
    is_listed: bool,
    is_of_up: bool,
) -> None:
    who = me(3, role)
    told = join(**({who.instance: 7} if is_of_up else {})) if has_join else None
    nodes = [{"instance": who.instance, "address": who.address, "number": 4}]
    cluster = {"nodes": nodes if is_listed else []}
    step = next_step(told, cluster, who, Seen(is_installed, joined, tuple(failures)))
    may = has_join and is_listed and not is_of_up and role == "worker"
    assert (step.do in ("install", "start", "stay", "give up")) == may
    if may:
        assert step.number == 4
        same = failures[-MOST_TRIES:]
        is_hopeless = len(same) == MOST_TRIES and len(set(same)) == 1
        assert (step.do == "give up") == is_hopeless
        if not is_hopeless:
            assert (step.do == "install") == (not is_installed)
            assert (step.do == "stay") == (is_installed and joined == HEAD)
    if is_of_up and has_join:
        assert (step.do, step.number) == ("leave", 7)


def test_the_number_of_an_up_is_of_no_other_node() -> None:
    found = [instance(1), instance(2)]
    objects = {f"i-{n:08x}": object_of(n) for n in (1, 2)}
    before = cluster_of(found, objects, None, None)
    assert [one["number"] for one in before["nodes"]] == [0, 1]
    after = cluster_of(found, objects, join(**{"i-00000002": 0}), before)
    assert [one["number"] for one in after["nodes"]] == [2, 0]


def test_another_address_is_not_listed() -> None:
    cluster = {"nodes": [{"instance": "i-00000003", "address": "6.6.6.6", "number": 4}]}
    assert next_step(join(), cluster, me(3), Seen(True, "")).do == "wait"


# ----------------------------------------------------------------------- the agent

AWS = """#!/bin/sh
# aws, as the agent calls it, with a folder in the place of AWS
set -e
echo "$1 $2" >>{folder}/called
case "$1 $2" in
"ec2 describe-instances") exec cat {folder}/instances.json ;;
"autoscaling describe-auto-scaling-groups") exec cat {folder}/groups.json ;;
"autoscaling describe-scaling-activities") exec cat {folder}/activities.json ;;
"autoscaling "*) echo "$@" >>{folder}/changed ;;
"secretsmanager get-secret-value") echo '{{"SecretString": "'"$4"' of Ray"}}' ;;
"s3 sync")
    rm -rf "$6"; mkdir -p "$6"
    cp {folder}/s3/${{5##*/}}/* "$6/" 2>/dev/null || : ;;
"s3 cp")
    from={folder}/s3/${{4#s3://bucket/}} to={folder}/s3/${{5#s3://bucket/}}
    [ "$5" != - ] || exec cat "$from"
    mkdir -p "$(dirname "$to")"
    cat >"$to.new"; mv "$to.new" "$to" ;;
*) exit 2 ;;
esac
"""


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the cluster's part of the bucket."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "aws"
    program.write_text(AWS.format(folder=tmp_path))
    program.chmod(0o755)
    (tmp_path / "s3" / "nodes").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "s3"


TOLD: dict[str, Any] = {
    "id": "0123abcd", "folder": "s3://bucket", "secret": "token", "keeps": False,
    "signal": "", "workers": 2, "least": 1, "settle_s": 300, "wait_s": 3300,
}  # fmt: skip


def agent(number: int, role: str = "worker", **more: Any) -> node_agent.Agent:
    return node_agent.Agent({**TOLD, **me(number, role)._asdict(), **more})


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def read(path: Path) -> Any:
    return json.loads(path.read_text())


class Host:
    """Answers the verbs of a host's program."""

    def __init__(self, home: Path) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.home, self.is_alive, self.refuses = home, False, ""

    def __call__(
        self, python: str, verb: str, request: Any, limit_s: float, payload: bytes = b""
    ) -> dict[str, Any]:
        self.asked.append((verb, {**request, "by": python, "payload": payload}))
        if self.refuses and verb == "start":
            raise node_agent.Failure(self.refuses)
        if verb == "install":
            folder = self.home / ".shoal" / "environments" / request["environment"]
            (folder / "bin").mkdir(parents=True)
            (folder / "bin" / "python").touch()
            (folder / "ready").touch()
        self.is_alive |= verb == "start"
        facts = {"python": "/e/bin/python", "path": "/bin", "gpus": ["GPU-1"]}
        return {"is_alive": self.is_alive, **facts}

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.asked if verb != "facts"]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    found = Host(tmp_path / "home")
    monkeypatch.setattr(node_agent, "host", found)
    return found


def test_the_interpreter_of_the_file_makes_the_environment(
    bucket: Path, host: Host
) -> None:
    write(bucket / "join.json", {**join(), "base": "/opt/python"})
    (bucket / "environments").mkdir()
    (bucket / "environments" / "0a.tar").write_bytes(b"wheels")
    listed = [{"instance": "i-00000003", "address": "10.0.0.3", "number": 5}]
    write(bucket / "cluster.json", {"nodes": listed})
    assert agent(3).turn().do == "install"
    assert dict(host.asked)["install"]["by"] == "/opt/python"


def test_a_worker_joins_step_by_step(bucket: Path, host: Host) -> None:
    node = agent(3)
    assert node.turn().do == "wait"
    write(bucket / "join.json", join(**{"i-00000009": 0}))
    (bucket / "environments").mkdir()
    (bucket / "environments" / "0a.tar").write_bytes(b"wheels")
    assert node.turn().why == "the master does not list it yet"
    listed = [{"instance": "i-00000003", "address": "10.0.0.3", "number": 5}]
    write(bucket / "cluster.json", {"nodes": listed})
    assert [node.turn().do for _ in range(3)] == ["install", "start", "stay"]
    assert host.verbs == ["install", "start", "look"]
    _, installed = host.asked[0]
    assert (installed["payload"], installed["by"]) == (b"wheels", sys.executable)
    started = dict(host.asked)["start"]
    assert started["token"] == "token of Ray"
    assert (started["mark"], started["private"]) == ("0123abcd-5", "10.0.0.3")
    assert (started["head"], started["port"]) == ("10.0.0.9", 6379)
    told = joined_of((bucket / "joined" / "i-00000003.json").read_bytes(), member(3))
    assert told is not None
    assert (told.state, told.number, told.head) == ("joined", 5, HEAD)
    log = (bucket / "logs" / "i-00000003" / "agent.log").read_text()
    assert [line.split(" ", 1)[1] for line in log.splitlines()][-3:] == [
        "install", "start", "stay",
    ]  # fmt: skip
    # Its own restart ends nothing, a lost Ray is started again, another head is joined.
    assert agent(3).turn().do == "stay"
    host.is_alive = False
    assert node.turn().do == "start"
    write(bucket / "join.json", {**join(), "port": 7})
    assert node.turn().do == "start"
    assert node.turn().do == "stay"
    # An `up` takes it over.
    write(bucket / "join.json", {**join(**{"i-00000003": 5}), "port": 7})
    before = len(host.verbs)
    assert node.turn().do == "leave"
    assert len(host.verbs) == before


@pytest.mark.parametrize(
    ("others", "answers", "keeps", "left"),
    [
        (0, True, False, "--no-should-decrement-desired-capacity"),
        (2, True, False, "--should-decrement-desired-capacity"),
        (2, False, False, ""),  # the head is gone: no fault of the node
        (0, True, True, ""),
    ],
)
def test_a_node_that_cannot_join_says_why_and_leaves(
    bucket: Path, host: Host, monkeypatch: pytest.MonkeyPatch,
    others: int, answers: bool, keeps: bool, left: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(node_agent, "_answers", lambda _host, _port: answers)
    for number in range(others):
        told = {"state": "failed", "reason": f"Ray is version {number} there"}
        write(bucket / "joined" / f"i-{number}.json", told)
    write(bucket / "join.json", {**join(), "python": sys.executable})
    listed = [{"instance": "i-00000003", "address": "10.0.0.3", "number": 5}]
    write(bucket / "cluster.json", {"nodes": listed})
    host.refuses = "Ray is version 9 there"
    node = agent(3, keeps=keeps)
    assert [node.turn().do for _ in range(4)] == ["start"] * 3 + ["give up"]
    told = joined_of((bucket / "joined" / "i-00000003.json").read_bytes(), member(3))
    assert told is not None
    assert (told.state, told.reason) == ("failed", host.refuses)
    log = (bucket / "logs" / "i-00000003" / "agent.log").read_text()
    assert f"give up: {host.refuses}" in log
    changed = bucket.parent / "changed"
    said = changed.read_text().split() if changed.exists() else [""]
    assert said[-1] == left
    host.refuses = ""
    write(bucket / "join.json", {**join(), "python": sys.executable, "backend": "x"})
    assert node.turn().do == "start"  # another `up`


def test_the_master_forms_the_cluster_with_those_that_came(
    bucket: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[tuple[bool, str]] = []
    now_s = [1e9]

    def signal(_url: str, _instance: str, *, is_up: bool, why: str) -> None:
        signals.append((is_up, why))

    monkeypatch.setattr(node_forming, "signal", signal)
    created = datetime.fromtimestamp(now_s[0], UTC).isoformat()
    groups = [
        {
            "AutoScalingGroupName": f"{role}s", "CreatedTime": created,
            "Tags": [{"Key": "shoal:role", "Value": role}],
        }
        for role in ("master", "worker")
    ]  # fmt: skip
    write(bucket.parent / "groups.json", {"AutoScalingGroups": groups})
    failed = {"StatusCode": "Failed", "StatusMessage": SHORT}
    write(bucket.parent / "activities.json", {"Activities": [failed]})
    found = [instance(9, "master"), instance(1)]
    write(bucket.parent / "instances.json", {"Reservations": [{"Instances": found}]})
    write(bucket / "nodes" / "i-00000009.json", object_of(9, "master"))
    write(bucket / "nodes" / "i-00000001.json", object_of(1))
    told = {**TOLD, **me(9, "master")._asdict()}
    node = node_agent.Agent(told, lambda: now_s[0])
    node.turn()
    now_s[0] += 290
    node.turn()
    assert not (bucket / "formed.json").exists()
    now_s[0] += 20
    node.turn()
    assert read(bucket / "formed.json") == {
        "form": 1, "state": "fewer", "asked": 2, "came": 1, "why": SHORT,
    }  # fmt: skip
    assert signals == [(True, f"1 of 2 workers: {SHORT}")]
    changed = (bucket.parent / "changed").read_text().split()
    assert changed[1:] == [
        "set-desired-capacity", "--auto-scaling-group-name", "workers",
        "--desired-capacity", "1",
    ]  # fmt: skip
    node.turn()  # it is decided once
    # An agent that starts again tells the stack, in case it has not, and no more.
    write(bucket.parent / "activities.json", {"Activities": []})
    node_agent.Agent(told, lambda: now_s[0]).turn()
    assert signals == [(True, f"1 of 2 workers: {SHORT}")] * 2


def test_the_stack_that_cannot_be_told_is_told_later(
    bucket: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    formed = {"state": "fail", "asked": 2, "came": 0, "why": SHORT}
    write(bucket / "formed.json", formed)
    write(bucket.parent / "instances.json", {"Reservations": []})
    asked: list[Any] = []

    def refused(request: Any, timeout: float) -> None:
        asked.append(json.loads(request.data))
        code = 503 if len(asked) == 1 else 403  # 403: the address has expired
        raise HTTPError(request.full_url, code, "no", Message(), None)

    monkeypatch.setattr(urllib.request, "urlopen", refused)
    node = agent(9, "master", signal="http://127.0.0.1:9/wait")
    for _ in range(3):
        node.turn()
    assert [one["Status"] for one in asked] == ["FAILURE"] * 2
    assert asked[0]["Reason"] == f"0 of 2 workers: {SHORT}"


def test_the_master_lists_nodes_as_they_come_and_go(bucket: Path, host: Host) -> None:
    def there(*numbers: int) -> None:
        found = [instance(9, "master"), *(instance(n) for n in numbers)]
        told = {"Reservations": [{"Instances": found}]}
        write(bucket.parent / "instances.json", told)

    write(bucket / "join.json", join(**{"i-00000009": 0, "i-00000001": 1}))
    write(
        bucket / "formed.json", {"state": "complete", "asked": 2, "came": 2, "why": ""}
    )
    for number, role in ((9, "master"), (1, "worker"), (2, "worker")):
        write(bucket / "nodes" / f"i-{number:08x}.json", object_of(number, role))
    (bucket / "nodes" / "i-00000007.json").write_text("{")
    node = agent(9, "master")
    there(1)
    assert node.turn().do == "leave"
    listed = read(bucket / "cluster.json")["nodes"]
    assert [(one["address"], one["number"]) for one in listed] == [
        ("10.0.0.9", 0), ("10.0.0.1", 1),
    ]  # fmt: skip
    there(2)  # one was lost, and another came in its place
    node.turn()
    listed = read(bucket / "cluster.json")["nodes"]
    assert [(one["address"], one["number"]) for one in listed] == [
        ("10.0.0.9", 0), ("10.0.0.2", 2),
    ]  # fmt: skip
    written = (bucket / "cluster.json").stat().st_mtime_ns
    node.turn()  # nothing has changed, so nothing is written
    assert (bucket / "cluster.json").stat().st_mtime_ns == written


def test_a_bucket_that_does_not_answer_ends_no_agent(
    bucket: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bucket.parent / "bin" / "aws").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(node_agent.Failure, match="aws ec2 describe-instances"):
        agent(9, "master").turn()

    def stop(_seconds: float) -> None:
        raise KeyboardInterrupt

    write(bucket.parent / "agent.json", {
        **TOLD, **me(9, "master")._asdict(),
    })  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["agent", str(bucket.parent / "agent.json")])
    clock = SimpleNamespace(sleep=stop, strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr(node_agent, "time", clock)
    with pytest.raises(KeyboardInterrupt):
        node_agent.main()  # the turn has failed, and the next one is waited for


def test_its_text_needs_nothing_that_is_installed() -> None:
    tree = ast.parse(agent_text())
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).partition(".")[0])
    assert names <= {*sys.stdlib_module_names}
    assert agent_text().rstrip().endswith("main()")
    compile(agent_text(), "agent", "exec")
    own = [
        name for node in tree.body for name in (
            [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef)
            else [one.id for one in ast.walk(node)
                  if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
        )
    ]  # fmt: skip
    twice = {name for name in own if own.count(name) > 1}
    assert twice == {"HOST_PROGRAM", "HOST_BOOT"}  # its parts share one file


# ------------------------------------------------------------- what the laptop sees


@pytest.mark.parametrize(
    ("changed", "is_node"),
    [
        ({}, True),
        ({"state": "failed"}, False),
        ({"head": "10.0.0.9:1"}, False),  # it has joined another head
        ({"number": 0}, False),  # the number of another node
        ({"address": "6.6.6.6"}, False),
        ({"python": "/bin/sh -c evil"}, False),
        ({"number": "x"}, False),
    ],
)
def test_a_worker_that_has_joined_by_itself_is_a_node(
    tmp_path: Path, changed: dict[str, Any], is_node: bool
) -> None:
    state = known(MASTER, member(1), folder=tmp_path)
    told = {
        "state": "joined", **me(3)._asdict(), "number": 5, "head": HEAD,
        "python": "/e/bin/python", "path": "/bin:/usr/bin", "gpus": [], **changed,
    }  # fmt: skip
    found = joined_of(json.dumps(told).encode(), member(3))
    said_by = {} if found is None else {"i-00000003": found}
    now = refreshed(state, [MASTER, member(3)], tmp_path, said_by)
    numbers = [(node.number, node.address) for node in now.nodes]
    assert numbers == [(0, "prod-master"), *([(5, "prod-worker2")] if is_node else [])]
    if is_node:
        assert now.mark_of(now.nodes[1]) == f"{state.id}-5"
        assert now.nodes[1].python == "/e/bin/python"
        told_now = join_of(now, None)  # the next `up` takes it over
        assert told_now["nodes"] == {"i-00000009": 0, "i-00000003": 5}
        assert told_now["head"] == "10.0.0.9"


@pytest.mark.parametrize(
    ("role", "do", "join", "expects", "found"),
    [
        ("master", "leave", {}, True, SOON_S),
        ("master", "leave", {}, False, PAUSE_S),
        ("worker", "wait", {}, False, SOON_S),
        ("worker", "wait", None, False, PAUSE_S),
        ("worker", "install", {}, False, PAUSE_S),
        ("worker", "stay", {}, False, LONG_S),
        ("worker", "leave", {}, False, LONG_S),
    ],
)
def test_turns_are_short_while_a_node_is_on_its_way(
    role: str, do: str, join: Any, expects: bool, found: float
) -> None:
    me = Me("i-1", "10.0.0.1", role)
    assert pause_s(me, Step(do), join, expects=expects) == found
