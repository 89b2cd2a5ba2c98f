"""Python and its packages on a host: inspection and installation."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import IO

from shoal.clusters.host_agent.answering import Fields, UserError, run

GPU_LIMIT_S = 30.0


def facts(request: Fields) -> Fields:
    """Returns facts about this host, and packages of the running interpreter."""
    folder = environment_folder(request["environment"])
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return {
        "python": sys.executable,
        "version": ".".join(map(str, sys.version_info[:2])),
        "is_ready": folder is None or (Path(sys.prefix) == folder and is_ready(folder)),
        "has_venv": importlib.util.find_spec("ensurepip") is not None,
        "packages": {name: package_version(name) for name in request["packages"]},
        "code": code_digest(),
        "address": connection[2] if len(connection) == 4 else "",
        "path": os.environ.get("PATH", os.defpath),
        "gpus": [line.strip() for line in gpu_lines("uuid")],
        "cores": len(os.sched_getaffinity(0)),
        "memory": free_memory(),
        "disk": shutil.disk_usage(Path.home()).free,
    }


def environment_folder(name: str | None) -> Path | None:
    """Returns the folder of an installed environment; None for the user's own."""
    return Path.home() / ".shoal" / "environments" / name if name else None


def is_ready(folder: Path) -> bool:
    """Whether the installation of an environment was completed."""
    return (folder / "ready").is_file()


def package_version(name: str) -> str:
    """Returns a package's version, without the part after a +; empty for none."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name).partition("+")[0]
    return ""


def code_digest() -> str:
    """Returns a digest of Shoal's files: versions under development share a number."""
    spec = importlib.util.find_spec("shoal")
    if spec is None or not spec.origin:
        return ""
    folder, digest = Path(spec.origin).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def free_memory() -> int:
    """Returns the bytes that are free or can be freed."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def gpu_lines(query: str) -> list[str]:
    """Returns nvidia-smi's line of each GPU; none without it."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=True, timeout=GPU_LIMIT_S,
        )  # fmt: skip
        return [line for line in done.stdout.splitlines() if line.strip()]
    return []


def install(request: Fields) -> Fields:
    """Installs the pinned environment, unless another host with this home just did."""
    archive = io.BytesIO(sys.stdin.buffer.read(request["size"]))
    folder = environment_folder(request["environment"])
    if folder is None:
        raise UserError("no environment was named")
    folder.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + request["limit_s"]
    with open(f"{folder}.lock", "w") as lock:
        _take(lock, until)
        if not is_ready(folder):
            _make(folder, archive, request, until)
    return {"python": str(folder / "bin" / "python")}


def _take(lock: IO[str], until: float) -> None:
    while True:
        try:
            return fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > until:
                raise UserError(f"another process keeps {lock.name}") from None
            time.sleep(0.2)


def _make(folder: Path, archive: IO[bytes], request: Fields, until: float) -> None:
    """Makes a new environment with the requested packages; `ready` is written last."""
    shutil.rmtree(folder, ignore_errors=True)
    wheels, python = folder / "wheels", str(folder / "bin" / "python")
    run([sys.executable, "-m", "venv", str(folder)], until)
    wheels.mkdir()
    with tarfile.open(fileobj=archive) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is not None:
                (wheels / Path(member.name).name).write_bytes(content.read())
    words = [
        python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
        "--find-links", str(wheels), *request["options"], *request["requirements"],
        *(str(wheels / name) for name in request["files"]),
    ]  # fmt: skip
    run(words, until)
    shutil.rmtree(wheels)
    (folder / "ready").touch()


def remove_environment(name: str) -> None:
    """Removes an environment, and the lock beside it."""
    folder = environment_folder(name)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        Path(f"{folder}.lock").unlink(missing_ok=True)
