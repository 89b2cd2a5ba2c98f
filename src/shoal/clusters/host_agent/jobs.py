"""Jobs on a host: start, state, end; each has a folder."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path

from shoal.clusters.host_agent.answering import Fields, UserError
from shoal.clusters.host_agent.nodes import check_own, make_own, ray_variables
from shoal.clusters.host_agent.processes import began, still_there, sweep

GUARD = """
status=$1; shift
trap : TERM INT HUP
"$@" &
child=$!
while
    wait $child
    code=$?
    [ $code -gt 128 ] && kill -0 $child 2>/dev/null
do :; done
echo $code >"$status.new"
mv "$status.new" "$status"
"""
"""A shell that outlives the job to write its exit status."""


def jobs_folder(shared: str | None) -> Path:
    """Returns the folder of this user's jobs.

    Args:
        shared: The folder that all hosts share, perhaps with other users, if there is
            one.

    Raises:
        UserError: Other users could put files there, which would be run.
    """
    if not shared:
        return Path.home() / ".shoal" / "jobs"
    base = Path(shared, f".shoal-{os.getuid()}")
    with suppress(FileNotFoundError):
        check_own(base)
    return base / "jobs"


def job_folder(request: Fields) -> Path:
    """Returns the folder of a job.

    Raises:
        UserError: Its id would lead outside.
    """
    if not re.fullmatch(r"\w[\w-]{0,99}", request["id"]):
        raise UserError(f"no job is called {request['id']!r}")
    return jobs_folder(request["shared"]) / request["id"]


def submit(request: Fields) -> Fields:
    """Starts a job in a session of its own, so that it survives the caller."""
    base = jobs_folder(request["shared"])
    folder = job_folder(request)
    if request["shared"]:
        make_own(base.parent)  # another user may have made it since the check
    base.parent.mkdir(mode=0o700, exist_ok=True)
    base.mkdir(mode=0o700, exist_ok=True)
    for new in (folder, folder / "files"):
        new.mkdir(mode=0o700)
    content = io.BytesIO(sys.stdin.buffer.read(request["size"]))
    with tarfile.open(fileobj=content) as archive:
        archive.extractall(folder / "files")
    runs = request["runs"] or str(folder / "shoal-runs")
    variables = {
        **ray_variables(request["mark"]), "RAY_ADDRESS": request["address"],
        "SHOAL_RUNS": runs, "PYTHONUNBUFFERED": "1", **request["variables"],
        "SHOAL_NODE": request["mark"], "SHOAL_JOB": request["id"],
    }  # fmt: skip
    command = [sys.executable, request["script"], *request["arguments"]]
    with (folder / "log").open("ab") as log:
        guard = subprocess.Popen(
            ["sh", "-c", GUARD, "shoal", str(folder / "status"), *command],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            cwd=folder / "files", env=os.environ | variables, start_new_session=True,
        )  # fmt: skip
    record = {
        "id": request["id"], "script": request["script"],
        "arguments": request["arguments"], "began": time.time(),
        "pids": {str(guard.pid): began(guard.pid)}, "host": request["mark"],
    }  # fmt: skip
    (folder / "job.new").write_text(json.dumps(record))
    (folder / "job.new").rename(folder / "job.json")
    return {"folder": str(folder), "runs": runs}


def jobs(request: Fields) -> Fields:
    """Returns all jobs, newest first."""
    found: list[Fields] = []
    for path in jobs_folder(request["shared"]).glob("*/job.json"):
        with suppress(OSError, ValueError):
            record = json.loads(path.read_text())
            record["id"] = path.parent.name  # the folder decides, not the file
            record["state"] = _state(path.parent, record)
            record["log"] = str(path.parent / "log")
            record["pid"] = next(iter(record["pids"]), "")
            found.append(record)
    return {"jobs": sorted(found, key=lambda job: job["began"], reverse=True)}


def _state(folder: Path, record: Fields) -> str:
    """Returns a job's state: "running", "done", "failed (3)", "stopped" or "lost"."""
    with suppress(OSError):
        code = (folder / "status").read_text().strip()
        if (folder / "stopped").exists():
            return "stopped"
        return "done" if code == "0" else f"failed ({code})"
    return "running" if still_there(record["pids"]) else "lost"


def stop_job(request: Fields) -> Fields:
    """Ends all processes of a job; its exit status stays in its folder."""
    folder = job_folder(request)
    try:
        record = json.loads((folder / "job.json").read_text())
    except (OSError, ValueError):
        raise UserError(f"there is no job {request['id']}") from None
    if _state(folder, record) != "running":
        return {"ended": 0}
    (folder / "stopped").touch()
    ended = sweep(f"SHOAL_JOB={record['id']}", None, record["pids"], request["grace_s"])
    if not (folder / "status").exists():  # its shell was killed with it
        (folder / "status").write_text("137\n")
    return {"ended": ended}


def remove_job(request: Fields) -> Fields:
    """Removes the folder of a job that has ended."""
    folder = job_folder(request)
    with suppress(OSError, ValueError):
        record = json.loads((folder / "job.json").read_text())
        if _state(folder, record) == "running":
            raise UserError(f"the job {request['id']} is running; stop it first")
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # a folder that is not empty stays
        folder.parent.rmdir()
        folder.parent.parent.rmdir()
    return {}
