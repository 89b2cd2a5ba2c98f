"""A node of Ray on a host: start, state, end."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import stat
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

from shoal.clusters.host_agent.answering import Fields, UserError, run
from shoal.clusters.host_agent.environments import remove_environment
from shoal.clusters.host_agent.processes import began, marked, sweep

LOOK_S = 30
HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "2",
}
"""Settings that find a lost host within ten seconds; Ray's own take 65."""
TOO_SLOW = "timed out during startup"
"""What Ray says of a node that was not up within 30 s, a limit that cannot be set. A
host that has just booted, or is busy, may need more; then files are in its memory."""


def start(request: Fields) -> Fields:
    """Starts a node of Ray, unless it runs; ends the rest of an earlier one."""
    began_at = time.monotonic()
    mark, port = request["mark"], request["port"]
    if is_alive(mark) and not request["again"]:
        return {"port": port, "is_new": False}
    end(mark)
    folder = node_folder(mark)
    for own in (*reversed(folder.parents[:2]), folder):
        own.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    # Ray opens its own folder to all users of a host: this one contains it.
    make_own(Path(temp_of(mark)))
    token = folder / "token"
    with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
        f.write(request["token"])
    port = port or free_port(request["private"])
    record = {"name": request["name"], "mark": mark}
    note(mark, record)
    try:
        run(
            ray_words(request, port),
            time.monotonic() + request["limit_s"],
            env={
                **os.environ,
                **ray_variables(mark),
                **request["variables"],
                "SHOAL_NODE": mark,
            },
            cwd=str(Path.home()),
        )
    except UserError as error:
        end(mark)
        left_s = request["limit_s"] - (time.monotonic() - began_at)
        if TOO_SLOW in str(error) and left_s > 0.0:
            return start(request | {"limit_s": left_s})
        raise
    pids = {str(pid): began(pid) for pid in processes_of(mark)}
    note(mark, record | {"pids": pids})
    write_profile(request, port)
    return {"port": port, "is_new": True}


def make_own(folder: Path) -> None:
    """Makes a private folder under a name that others can know.

    Raises:
        UserError: It existed, and others could write into it.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        check_own(folder)
        folder.chmod(0o700)


def check_own(folder: Path) -> None:
    """Checks that a folder is this user's, and that no other user may write there.

    Raises:
        UserError: It is not, or the path is a link or a file.
        FileNotFoundError: The path does not exist.
    """
    found = folder.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_own or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(
            f"{folder} is not a folder that only you can write to, and what lies "
            f"there is run. Check its owner, and remove it or `chmod go-w {folder}`"
        )


def remove_own(folder: Path) -> None:
    """Removes a folder of this user's; files of others under its name stay."""
    with suppress(OSError, UserError):
        check_own(folder)
        shutil.rmtree(folder, ignore_errors=True)


def ray_words(request: Fields, port: int) -> list[str]:
    """Returns the command that starts Ray here."""
    # Ray would use the same ports for all clusters of a host: 10001 and 52365.
    client, agent = free_port(request["private"]), free_port(request["private"])
    where = [f"--address={request['head']}:{port}"]
    if request["head"] is None:
        where = ["--head", f"--port={port}", "--include-dashboard=false"]
        where.append(f"--ray-client-server-port={client}")
    return [
        sys.executable, "-m", "ray.scripts.scripts", "start", *where,
        f"--node-ip-address={request['private']}",
        f"--temp-dir={temp_of(request['mark'])}/ray",
        f"--dashboard-agent-listen-port={agent}", "--disable-usage-stats",
        *request["options"],
    ]  # fmt: skip


def ray_variables(mark: str) -> dict[str, str]:
    """Returns variables of Ray's processes, and of programs that connect to them."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    return {
        **HEALTH, "PATH": path, "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(node_folder(mark) / "token"),
    }  # fmt: skip


def write_profile(request: Fields, port: int) -> None:
    """Writes a file for shells on this host: `fit` then uses all nodes.

    What is set already stays: every shell that a job starts may read it again.
    """
    mark, programs = request["mark"], Path(sys.executable).parent
    variables = {
        **ray_variables(mark), **request["variables"], "SHOAL_CLUSTER": "ray",
        "RAY_ADDRESS": f"{request['head'] or request['private']}:{port}",
    }  # fmt: skip
    del variables["PATH"]
    lines = [
        f'export {name}="${{{name}:-{value}}}"\n' for name, value in variables.items()
    ]
    lines.append(
        f'[ "${{PATH#*{programs}:}}" != "$PATH" ] || PATH="{programs}:$PATH"\n'
    )
    (node_folder(mark) / "profile.sh").write_text("".join(lines))


def node_folder(mark: str) -> Path:
    """Returns the folder of a node's records on its host."""
    return Path.home() / ".shoal" / "nodes" / mark


def note(mark: str, record: Fields) -> None:
    """Stores records of a node."""
    (node_folder(mark) / "node.json").write_text(json.dumps(record))


def noted(mark: str) -> Fields:
    """Returns the records of a node; empty without any."""
    with suppress(OSError, ValueError):
        return json.loads((node_folder(mark) / "node.json").read_text())
    return {}


def temp_of(mark: str) -> str:
    """Returns Ray's folder: a short path, because socket paths are cut at 107 bytes."""
    return f"/tmp/shoal-{mark}"


def processes_of(mark: str, command: str = "") -> list[int]:
    """Returns a node's processes, or those of one program."""
    return marked(f"SHOAL_NODE={mark}", temp_of(mark), command)


def is_alive(mark: str) -> bool:
    """Whether a node runs here."""
    return bool(processes_of(mark, "raylet"))


def free_port(address: str) -> int:
    """Returns a port on which no program listened just now."""
    with closing(socket.create_server((address, 0))) as server:
        return server.getsockname()[1]


def look(request: Fields) -> Fields:
    """Returns which processes of a node run; the head adds Ray's view of all."""
    mark = request["mark"]
    count, runs = len(processes_of(mark)), is_alive(mark)
    found: Fields = {"processes": count, "is_alive": runs}
    is_asked = request["ask"] and runs
    if is_asked and (not request["is_head"] or processes_of(mark, "gcs_server")):
        signal.alarm(LOOK_S)  # Ray would wait much longer for a hung head
        found["nodes"] = nodes_of_ray(mark, request["ask"])
    return found


def nodes_of_ray(mark: str, address: str) -> list[Fields]:
    """Returns Ray's own list of its nodes."""
    os.environ.update(ray_variables(mark))
    import ray

    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        return [
            {
                "address": node["NodeManagerAddress"],
                "is_alive": node["Alive"],
                "ports": [node["NodeManagerPort"], node["ObjectManagerPort"]],
                "cpus": node["Resources"].get("CPU", 0.0),
                "gpus": node["Resources"].get("GPU", 0.0),
            }
            for node in ray.nodes()
        ]
    finally:
        ray.shutdown()


def stop(request: Fields) -> Fields:
    """Ends nodes of a cluster on this host; by its name if the mark is unknown."""
    marks = [*request["marks"]]
    if not marks:
        for path in (Path.home() / ".shoal" / "nodes").glob("*/node.json"):
            record = noted(path.parent.name)
            if record.get("name") == request["name"]:
                marks.append(path.parent.name)
    ended = 0
    for mark in marks:
        ended += end(mark)
        for folder in (Path(temp_of(mark)), node_folder(mark)):
            remove_own(folder)
    if request["environment"]:
        remove_environment(request["environment"])
    for folder in ("nodes", "environments", ""):
        with suppress(OSError):  # a folder that is not empty stays
            (Path.home() / ".shoal" / folder).rmdir()
    return {"ended": ended}


def end(mark: str) -> int:
    """Ends all processes of a node."""
    return sweep(f"SHOAL_NODE={mark}", temp_of(mark), noted(mark).get("pids", {}))
