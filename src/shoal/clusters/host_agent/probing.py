"""The condition of a host, and its connections to the others, in two steps."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from shoal.clusters.host_agent.answering import Fields, UserError, tell
from shoal.clusters.host_agent.environments import free_memory, gpu_lines
from shoal.clusters.host_agent.nodes import is_alive

CONNECT_S, SEEN_S, SEND_S = 3.0, 5.0, 0.5
MOST_BYTES, CHUNK = 64 << 20, bytes(1 << 16)
PINGS = 10
GPU_QUERY = "name,memory.used,memory.total,temperature.gpu"


def probe(request: Fields) -> Fields:
    """Reports this host's condition, then, given the others, its connections."""
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(int(request["limit_s"]))  # a broken network link closes nothing
    own = _shared_file(request["shared"], request["secret"], request["private"])
    listener = _listen(request)
    try:
        tell({"port": listener.getsockname()[1], **_condition(request, own)})
        asked = json.loads(sys.stdin.buffer.readline() or "{}")
        if asked:
            tell(_reach(asked, request))
            sys.stdin.buffer.readline()  # the others still need this one
    finally:
        listener.close()
        if own is not None:
            own.unlink(missing_ok=True)
    return {}


def _late(*_: Any) -> None:
    raise UserError("it was not done in its time")


def _shared_file(folder: str | None, secret: str, private: str) -> Path | None:
    return Path(folder, f".shoal-{secret}-{private}") if folder else None


def _condition(request: Fields, own: Path | None) -> Fields:
    """Returns the condition of the host alone."""
    places = {"home": str(Path.home()), "temporary files": "/tmp"}
    complaint = ""
    if own is not None:
        places["shared folder"] = str(own.parent)
        try:
            # The folder may be others' too: existing files are not written to.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(own, flags, 0o600), "w") as file:
                file.write("here")
        except OSError as error:
            complaint = str(error)
    free: dict[str, int] = {}
    for what, place in places.items():
        with suppress(OSError):
            free[what] = shutil.disk_usage(place).free
    return {
        "is_alive": is_alive(request["mark"]),
        "free": free,
        "memory": free_memory(),
        "gpus": [[word.strip() for word in g.split(",")] for g in gpu_lines(GPU_QUERY)],
        "load": os.getloadavg()[0] / (os.cpu_count() or 1),
        "shared": complaint,
    }


def _reach(asked: Fields, request: Fields) -> Fields:
    """Returns measurements between this host and the others."""
    places = [(address, port) for address, port in asked["ports"]]
    with ThreadPoolExecutor(16) as pool:
        closed = [
            [*place, why]
            for place, why in zip(places, pool.map(_knock, places), strict=True)
            if why
        ]
    unseen: list[str] = []
    if request["shared"]:
        until = time.monotonic() + SEEN_S
        for private in asked["shared"]:
            path = _shared_file(request["shared"], request["secret"], private)
            while path is not None and not path.exists():
                if time.monotonic() > until:
                    unseen.append(private)
                    break
                time.sleep(0.1)
    found: Fields = {"closed": closed, "unseen": unseen}
    if asked["head"] is not None:
        with suppress(OSError, ValueError):
            found.update(_measure(tuple(asked["head"]), request["secret"]))
    return found


def _knock(place: tuple[str, int]) -> str:
    """Returns why a port does not answer; empty if it does."""
    try:
        socket.create_connection(place, CONNECT_S).close()
    except OSError as error:
        return str(error)
    return ""


def _measure(head: tuple[str, int], secret: str) -> Fields:
    """Returns round-trip seconds, the lead of this clock, and bytes a second."""
    trips: list[tuple[float, float]] = []
    with closing(_greet(head, secret)) as line, line.makefile("rwb") as file:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PINGS):
            began, ours = time.perf_counter(), time.time()
            file.write(b"time\n")
            file.flush()
            theirs = float(file.readline())
            trip = time.perf_counter() - began
            trips.append((trip, ours + trip / 2 - theirs))
        file.write(b"take\n")
        file.flush()
        file.readline()  # it serves one at a time
        sent, until = 0, time.monotonic() + SEND_S
        while time.monotonic() < until and sent < MOST_BYTES:
            line.sendall(CHUNK)
            sent += len(CHUNK)
        line.shutdown(socket.SHUT_WR)
        count, seconds = file.readline().split()
    trip, ahead = min(trips)
    rate = int(count) / max(float(seconds), 1e-6)
    return {"latency_s": trip, "ahead_s": ahead, "bytes_per_s": rate}


def _greet(place: tuple[str, int], secret: str) -> socket.socket:
    line = socket.create_connection(place, CONNECT_S)
    line.settimeout(SEND_S + 60 * CONNECT_S)
    line.sendall(secret.encode() + b"\n")
    return line


def _listen(request: Fields) -> socket.socket:
    """Answers the others in threads, until it is closed."""
    try:
        listener = socket.create_server((request["private"], 0))
    except OSError as error:
        raise UserError(f"it cannot listen at {request['private']}: {error}") from error
    turn = threading.Lock()

    def accept() -> None:
        with suppress(OSError):
            while True:
                line, _ = listener.accept()
                threading.Thread(
                    target=_serve, args=(line, request["secret"], turn), daemon=True
                ).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener


def _serve(line: socket.socket, secret: str, turn: threading.Lock) -> None:
    """Sends the time, and receives bytes, for one other host."""
    with suppress(OSError), closing(line), line.makefile("rwb") as file:
        line.settimeout(60 * CONNECT_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if file.readline(200).decode(errors="replace").strip() != secret:
            return
        while said := file.readline(200):
            if said == b"time\n":
                file.write(b"%.9f\n" % time.time())
                file.flush()
            elif said == b"take\n":
                with turn:
                    file.write(b"go\n")
                    file.flush()
                    count, began = 0, time.perf_counter()
                    while data := file.read1(len(CHUNK)):
                        count += len(data)
                    took = time.perf_counter() - began
                file.write(b"%d %.9f\n" % (count, took))
                file.flush()
