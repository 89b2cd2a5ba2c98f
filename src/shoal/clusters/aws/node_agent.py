"""The agent on each node of a cluster on AWS: it joins, and the master lists nodes.

It runs as the login user, by systemd. Each turn reads the objects of the cluster in
its bucket, decides, and does one step. It does what `up` does by SSH, with the same
program, so that a replaced worker needs nobody's laptop. It has the standard library
and the AWS command line alone.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from shoal.clusters.aws.degrade import repeated
from shoal.clusters.aws.node_calls import Failure, NodeCalls
from shoal.clusters.aws.node_decisions import (
    PAUSE_S,
    Me,
    Seen,
    Step,
    cluster_of,
    expects_more,
    head_of,
    next_step,
    pause_s,
)
from shoal.clusters.aws.node_forming import Forming

HOST_PROGRAM, HOST_BOOT = "", ""  # the program that ssh runs, when this is sent

INSTALL_S, START_S, LOOK_S, CONNECT_S = 1800.0, 90.0, 60.0, 5.0
SPARE_S = 15.0
MOST_LINES = 500


def host(
    python: str,
    verb: str,
    request: Mapping[str, Any],
    limit_s: float,
    payload: bytes = b"",
) -> dict[str, Any]:
    """Runs a verb of the program that `up` runs by SSH; returns its answer.

    Raises:
        Failure: It refused, or gave no answer.
    """
    text = f"{HOST_PROGRAM}\nanswer({{{verb!r}: {verb}}})\n".encode()
    asked = json.dumps({**request, "verb": verb}).encode()
    message = b"%d\n%b%b\n" % (len(text), text, asked)
    try:
        done = subprocess.run(
            [python, "-c", HOST_BOOT], input=message + payload, capture_output=True,
            check=False, timeout=limit_s, cwd=Path.home(),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failure(f"{verb}: {error}") from error
    found = re.findall(rb"^SHOAL: (.*)$", done.stdout, re.MULTILINE)
    if not found:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise Failure(f"{verb}: no answer: {said}")
    answer: dict[str, Any] = json.loads(found[-1])
    if "refused" in answer:
        raise Failure(str(answer["refused"]))
    return answer


@final
class Agent:
    """The agent of a node.

    Args:
        told: What its boot has written: id of the cluster, folder in the bucket,
            instance, address, role, name of the secret, and for the master what the
            file asks for.
        now: Returns seconds since 1970.
    """

    def __init__(
        self, told: Mapping[str, Any], now: Callable[[], float] = time.time
    ) -> None:
        self._id, self._secret = str(told["id"]), str(told["secret"])
        self._keeps = bool(told["keeps"])
        self.me = Me(told["instance"], told["address"], told["role"])
        self._place = Path.home() / ".shoal" / "agent"
        self._calls = NodeCalls(self._id, told["folder"], self._place)
        self._forming: Forming | None = None
        if self.me.role == "master":
            self._forming = Forming(self._calls, told, now)
        self._lines: list[str] = []
        self._said, self._reported, self._asked = "", "", ""
        self._failures = list[str]()
        self.pause_s = PAUSE_S
        """Seconds from the last turn that went well to the next."""

    def turn(self) -> Step:
        """Reads what is there, and does one step."""
        join, expects = self._calls.read("join.json"), False
        if self._forming is not None:
            expects = self._list(join, self._forming)
        step = self._step(join)
        self.pause_s = pause_s(self.me, step, join, expects=expects)
        self._say(f"{step.do}: {step.why}" if step.why else step.do)
        if join is not None and step.do in ("install", "start"):
            try:
                self._do(step, join)
            except Failure as error:
                self._failures.append(str(error))
                self._say(f"{step.do} failed: {error}")
                self._report({"state": "failed", "reason": str(error)[:4000]})
        elif join is not None and step.do == "stay":
            self._report_joined(step, join)
        elif join is not None and step.do == "give up":
            self._leave(join)
        return step

    # --------------------------------------------------------------- the master

    def _list(self, join: Mapping[str, Any] | None, forming: Forming) -> bool:
        """Writes `cluster.json`, if nodes have come or gone; forms the cluster.

        Returns whether more machines are on their way.
        """
        before = self._calls.read("cluster.json")
        instances, objects = self._calls.instances(), self._calls.objects("nodes")
        after = cluster_of(instances, objects, join, before)
        if after != before:
            self._calls.put("cluster.json", json.dumps(after).encode())
            self._say(f"lists {len(after['nodes'])} nodes")
        if not forming.is_done:
            try:
                said = forming.turn(instances, objects)
            except (Failure, OSError) as error:
                said = f"is not formed: {error}"
            if said:
                self._say(f"the cluster: {said}")
        return expects_more(instances, after)

    # ------------------------------------------------------------------ joining

    def _step(self, join: Mapping[str, Any] | None) -> Step:
        asked = json.dumps(join)
        if asked != self._asked:  # another `up`: what has failed may work now
            self._asked, self._failures = asked, []
        cluster = self._calls.read("cluster.json")
        first = next_step(join, cluster, self.me, Seen(True, ""))
        if join is None or first.do != "start":
            return first
        seen = Seen(
            is_installed=self._python(join).is_file() and self._is_ready(join),
            joined=self._joined() if self._is_alive(join, first.number) else "",
            failures=tuple(self._failures),
        )
        return next_step(join, cluster, self.me, seen)

    def _do(self, step: Step, join: Mapping[str, Any]) -> None:
        if step.do == "install":
            archive = self._calls.content(str(join["archive"]))
            request = {
                "environment": join["environment"], "size": len(archive),
                "limit_s": INSTALL_S, "options": join["options"],
                "requirements": join["requirements"], "files": join["files"],
            }  # fmt: skip
            limit_s = INSTALL_S + SPARE_S
            maker = str(join.get("base") or sys.executable)
            host(maker, "install", request, limit_s, archive)
            return
        request = {
            "name": join["name"], "mark": f"{self._id}-{step.number}",
            "token": self._calls.secret(self._secret), "private": self.me.address,
            "head": join["head"], "port": join["port"], "again": True,
            "limit_s": START_S, "options": [],
            "variables": {"KERAS_BACKEND": join["backend"]},
        }  # fmt: skip
        host(str(self._python(join)), "start", request, START_S + SPARE_S)
        self._place.mkdir(parents=True, exist_ok=True)
        (self._place / "head").write_text(head_of(join))
        self._failures = []
        self._report_joined(step, join)

    def _leave(self, join: Mapping[str, Any]) -> None:
        """Leaves the group, which starts another node, unless that would not help.

        A head that does not answer is not the fault of this node.
        """
        if self._keeps or not _answers(str(join["head"]), int(join["port"])):
            return
        told = self._calls.objects("joined").values()
        failed = [
            str(one.get("reason")) for one in told
            if isinstance(one, dict) and one.get("state") == "failed"
        ]  # fmt: skip
        is_hopeless = bool(repeated(failed))
        self._say("leaves its group" + ", which shrinks" * is_hopeless)
        self._calls.leave(self.me.instance, shrinks=is_hopeless)

    def _joined(self) -> str:
        """Returns the head that Ray here was told to join; also after a restart."""
        try:
            return (self._place / "head").read_text()
        except OSError:
            return ""

    def _python(self, join: Mapping[str, Any]) -> Path:
        if join["python"]:
            return Path(join["python"])
        folder = Path.home() / ".shoal" / "environments" / str(join["environment"])
        return folder / "bin" / "python"

    def _is_ready(self, join: Mapping[str, Any]) -> bool:
        return (
            bool(join["python"]) or (self._python(join).parents[1] / "ready").is_file()
        )

    def _is_alive(self, join: Mapping[str, Any], number: int) -> bool:
        if not (self._joined() and self._python(join).is_file()):
            return False
        request = {"mark": f"{self._id}-{number}", "ask": None, "is_head": False}
        try:
            found = host(str(self._python(join)), "look", request, LOOK_S)
        except Failure as error:
            self._say(f"look failed: {error}")
            return True  # a busy node is not ended for that
        return bool(found["is_alive"])

    # ---------------------------------------------------------------- reporting

    def _report_joined(self, step: Step, join: Mapping[str, Any]) -> None:
        request = {"environment": join["environment"], "packages": []}
        facts = host(str(self._python(join)), "facts", request, LOOK_S)
        self._report(
            {
                "state": "joined", "number": step.number, "head": head_of(join),
                "python": facts["python"], "path": facts["path"],
                "gpus": facts["gpus"],
            }
        )  # fmt: skip

    def _report(self, told: Mapping[str, Any]) -> None:
        whole = {"form": 1, "reason": "", **self.me._asdict(), **told}
        text = json.dumps(whole)
        if text != self._reported:
            self._calls.put(f"joined/{self.me.instance}.json", text.encode())
            self._reported = text

    def _say(self, text: str) -> None:
        """Writes a line to the log, here and in the bucket, unless it is the last."""
        if text == self._said:
            return
        self._said = text
        self._lines.append(time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + text)
        del self._lines[:-MOST_LINES]
        sys.stdout.write(self._lines[-1] + "\n")
        sys.stdout.flush()
        log = "".join(f"{line}\n" for line in self._lines)
        try:
            self._calls.put(f"logs/{self.me.instance}/agent.log", log.encode())
        except Failure:
            return  # the next line takes it along


def _answers(host: str, port: int) -> bool:
    """Whether something listens at an address."""
    with suppress(OSError), socket.create_connection((host, port), CONNECT_S):
        return True
    return False


def main() -> None:
    """Runs for ever; a turn that fails is repeated."""
    os.environ.pop("SHOAL_NODE", None)  # the end of a node must not end its agent
    told = json.loads(Path(sys.argv[1]).read_text())
    agent = Agent(told)
    while True:
        try:
            agent.turn()
        except Exception as error:  # whatever it is, the next turn may go well
            agent.pause_s = PAUSE_S
            sys.stdout.write(f"{type(error).__name__}: {error}\n")
            sys.stdout.flush()
        time.sleep(float(told.get("pause_s", agent.pause_s)))
