"""An agent that calls its driver, where the driver cannot call it.

A task of Spark, or of a batch system, has no address. So the agent connects, says where
it is, and asks for work: every call of the driver comes back on that one connection.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import selectors
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from shoal.errors import ExchangeTimeout
from shoal.launchers.agent_messages import ANSWER, ARRIVE, BEAT, CALL, pack
from shoal.launchers.node_agent import Arrival, NodeAgent
from shoal.launchers.versions import versions
from shoal.terminal import say
from shoal.wire.frames import BadFrame, Head, Link

ALONE_S = 60.0  # without a message of its driver an agent and its process end
END_S = 5.0  # for a call that is under way when the connection ends
CONNECT_S = 25.0  # less than a carrier waits for an agent
METHODS = ("start", "give", "stop", "listen", "close", "report")


@final
@dataclass(frozen=True, kw_only=True)
class Ticket:
    """All that an agent needs to reach its driver, and the only thing engines carry.

    An engine may carry it in the clear: model, data and the secret of the run come by
    the connection that it opens.

    Args:
        host: Address of the driver.
        port: Port of its listener.
        key: Key of this agent alone.
        certificate: Certificate of the driver, None without TLS.
        number: The descriptor that processes know the data by.
        backend: Name of the Keras backend; its version is reported.
        engine: Package of the engine that places workers; its version is reported.
    """

    host: str
    port: int
    key: bytes = field(repr=False)
    certificate: bytes | None
    number: int
    backend: str
    engine: str = ""

    def to_text(self) -> str:
        """Returns it as one line, for engines that carry text."""
        shown = None if self.certificate is None else self.certificate.hex()
        fields = {**asdict(self), "key": self.key.hex(), "certificate": shown}
        return json.dumps(fields)

    @classmethod
    def from_text(cls, text: str) -> Ticket:
        """Reads what `to_text` has written.

        Example:
            >>> ticket = Ticket(host="10.0.0.1", port=7, key=b"k", certificate=None,
            ...                 number=3, backend="jax")
            >>> Ticket.from_text(ticket.to_text()) == ticket
            True
        """
        fields: dict[str, Any] = json.loads(text)
        shown: str | None = fields["certificate"]
        fields["certificate"] = None if shown is None else bytes.fromhex(shown)
        fields["key"] = bytes.fromhex(fields["key"])
        return cls(**fields)


def this_node() -> str:
    """Returns what tells this node from others.

    Processes of one node see each other's memory in /proc: so a container, which has
    process ids of its own, is a node of its own whatever its name.
    """
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}/{boot}/{os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def main() -> None:
    """Serves the ticket that standard input says; tells why it ended.

    A command line would show its key to all users of the node.
    """
    say(serve(Ticket.from_text(sys.stdin.readline())))


def serve(ticket: Ticket, node_id: str = "") -> str:
    """Looks after processes of this node until the driver lets the agent go.

    Args:
        ticket: How the driver is reached.
        node_id: Id of this node; default "": `this_node()`.

    Returns:
        Why it ended, in words. All its processes have ended then.
    """
    try:
        link = Link(
            (ticket.host, ticket.port),
            ticket.key,
            certificate=ticket.certificate,
            timeout_s=CONNECT_S,
        )
    except ExchangeTimeout as error:
        why = str(error).partition(". ")[0]
        return (
            f"{socket.gethostname()} does not reach this process: {why}. Expected an "
            "address and a port that all nodes reach. Open the port to them, or have "
            "this process listen at another one"
        )
    except (OSError, BadFrame) as error:
        return f"the driver did not take it: {error}"
    agent = NodeAgent(ticket.number)
    try:
        arrival = Arrival(
            node=link.own_host,
            node_id=node_id or this_node(),
            versions=versions(ticket.backend, ticket.engine),
            memory=agent.memory,
        )
        return _AgentLoop(link, agent).run(arrival)
    finally:
        link.close()
        agent.close()
        agent.free()  # its process may be the engine's, and stay


@final
class _AgentLoop:
    """One connection: this thread reads and writes it, two others do what is asked.

    TLS does not allow that one thread reads while another writes. Reports have a thread
    of their own, so that the driver hears of this agent while a process takes long to
    end.
    """

    def __init__(self, link: Link, agent: NodeAgent) -> None:
        self._link, self._agent = link, agent
        self._work = queue.SimpleQueue[tuple[Head, memoryview] | None]()
        self._reports = queue.SimpleQueue[tuple[Head, memoryview] | None]()
        self._answers = queue.SimpleQueue[Head]()
        self._woken, self._wake = socket.socketpair()

    def run(self, arrival: Arrival) -> str:
        """Serves until the connection ends; returns why it did."""
        threads = [
            threading.Thread(target=self._do_all, args=(calls,), daemon=True, name=name)
            for calls, name in (
                (self._work, "shoal-agent-work"),
                (self._reports, "shoal-agent-reports"),
            )
        ]
        for thread in threads:
            thread.start()
        try:
            return self._serve(arrival)
        except (TimeoutError, ExchangeTimeout):
            return f"the driver stood still for {ALONE_S:g} s"
        except (OSError, BadFrame) as error:
            return f"the connection to the driver ended: {error}"
        finally:
            for calls in (self._work, self._reports):
                calls.put(None)
            for thread in threads:
                thread.join(END_S)
            self._woken.close()
            self._wake.close()

    def _serve(self, arrival: Arrival) -> str:
        # Half a frame is waited for so long, in both directions.
        self._link.socket.settimeout(ALONE_S)
        self._link.send({"kind": ARRIVE, **pack(arrival)})
        heard = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._link.socket, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                left_s = heard + ALONE_S - time.monotonic()
                if left_s <= 0:
                    return f"the driver said nothing for {ALONE_S:g} s"
                ready: set[Any] = set()
                if not self._link.has_pending:
                    ready = {key.fileobj for key, _ in selector.select(left_s)}
                if self._woken in ready:
                    self._woken.recv(1 << 12)
                with suppress(queue.Empty):
                    while True:
                        self._link.send(self._answers.get_nowait())
                if self._link.has_pending or self._link.socket in ready:
                    self._take(*self._link.receive())
                    heard = time.monotonic()

    def _take(self, head: Head, body: memoryview) -> None:
        if head["kind"] == BEAT:
            return
        if head["kind"] != CALL:
            raise BadFrame(f"a driver sent {head['kind']!r}")
        is_report = head.get("method") == "report"
        (self._reports if is_report else self._work).put((head, body))

    def _do_all(self, calls: queue.SimpleQueue[tuple[Head, memoryview] | None]) -> None:
        """Does one call after the other, and has each answered."""
        while (call := calls.get()) is not None:
            head, body = call
            told: Head = {"kind": ANSWER, "id": head.get("id")}
            try:
                told |= pack(self._do(head, body))
            except Exception as error:  # the driver is told
                told["error"] = f"{type(error).__name__}: {error}"
            self._answers.put(told)
            with suppress(OSError):  # the loop has ended
                self._wake.send(b".")

    def _do(self, head: Head, body: memoryview) -> Any:
        method = head.get("method")
        if method == "write":
            return self._agent.write(head["offset"], body)
        if method not in METHODS:
            raise BadFrame(f"an agent has no method {method!r}")
        # The driver has proved that it knows the key; the agent runs its code anyway.
        arguments = pickle.loads(body)
        return getattr(self._agent, method)(*arguments)


if __name__ == "__main__":
    main()
