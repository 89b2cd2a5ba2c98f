"""Checks this machine: what it can do, what is missing, and version conflicts.

`read_signs` inspects, and imports nothing heavy; `examine` judges, and is pure.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import requires
from pathlib import Path
from typing import final

import psutil

from shoal.backends import BACKENDS
from shoal.clusters.gpus import reaches_gpus, usable_gpus
from shoal.clusters.local import usable_cores
from shoal.clusters.version_conflicts import Finding, State, clashes, misfits
from shoal.launchers.versions import installed_version

PACKAGES = (
    "keras", "numpy", "jax", "jaxlib", "tensorflow", "tensorflow-cpu", "torch",
    "ray", "pyspark", "pandas", "pyarrow", "boto3", "s3fs", "fsspec", "tensorboard",
    "cryptography",
)  # fmt: skip
WANTING = ("shoal", "s3fs")
"""Packages whose requirements are checked: pip checks them only at installation."""
LEAST_FREE = 1 << 30
JAVA_LIMIT_S = 20.0
GIB = float(1 << 30)


@final
@dataclass(frozen=True, kw_only=True)
class Signs:
    """Facts about a machine.

    Args:
        python: Its version.
        system: Name of the system and of the processor.
        packages: Installed packages among `PACKAGES`: name -> version.
        backend: Backend that Keras will use.
        cores: Cores that this process may use.
        memory: Free bytes.
        gpus: Names of its GPUs.
        reaching: Installed backends that can compute on the GPUs.
        java: First line of `java -version`, empty without Java.
        has_ssh: Whether OpenSSH's client is installed.
        aws: Source of AWS credentials, empty for none.
        free: Free disk bytes, by use.
        wanted: Package -> requirements in its metadata.
    """

    python: str
    system: str
    packages: Mapping[str, str]
    backend: str
    cores: int
    memory: int
    gpus: tuple[str, ...] = ()
    reaching: tuple[str, ...] = ()
    java: str = ""
    has_ssh: bool = True
    aws: str = ""
    free: Mapping[str, int] = field(default_factory=dict[str, int])
    wanted: Mapping[str, Sequence[str]] = field(
        default_factory=dict[str, Sequence[str]]
    )


def read_signs(backend: str, runs: str) -> Signs:
    """Inspects this machine.

    Args:
        backend: Backend that Keras will use.
        runs: Folder or URL of runs.
    """
    packages = {name: found for name in PACKAGES if (found := installed_version(name))}
    folders = {"temporary files": tempfile.gettempdir(), "shared memory": "/dev/shm"}
    if "://" not in runs:
        folders["runs"] = runs
    return Signs(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        packages=packages,
        backend=backend,
        cores=usable_cores(),
        memory=int(psutil.virtual_memory().available),
        gpus=tuple(gpu.name for gpu in usable_gpus()),
        reaching=tuple(name for name in BACKENDS if reaches_gpus(name)),
        java=_java(),
        has_ssh=shutil.which("ssh") is not None,
        aws=_aws(os.environ, Path.home()),
        wanted={
            name: requires(name) or () for name in WANTING if installed_version(name)
        },
        free={what: free for what, at in folders.items() if (free := _free(Path(at)))},
    )


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=True,
            timeout=JAVA_LIMIT_S,
        )  # fmt: skip
        return (done.stderr or done.stdout).partition("\n")[0]
    return ""


def _aws(variables: Mapping[str, str], home: Path) -> str:
    """Returns the source of AWS credentials; uses no network."""
    for name in (
        "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ):  # fmt: skip
        if variables.get(name):
            return f"${name}"
    for name in ("credentials", "config"):
        if (home / ".aws" / name).is_file():
            return f"~/.aws/{name}"
    return ""


def _free(folder: Path) -> int:
    """Returns the free bytes of a folder's disk, also for a future folder."""
    for place in (folder.absolute(), *folder.absolute().parents):
        if place.is_dir():
            return shutil.disk_usage(place).free
    return 0


def examine(signs: Signs) -> list[Finding]:
    """Judges the facts: the machine, backends, clusters, and conflicts."""
    return [
        *_machine(signs),
        *_backends(signs),
        *_clusters(signs),
        *clashes(signs.packages, signs.java),
        *misfits(signs.packages, signs.wanted),
    ]


def _machine(signs: Signs) -> list[Finding]:
    memory = f"{signs.cores} cores, {signs.memory / GIB:.1f} GiB of memory free"
    found = [
        Finding(name="Python", found=f"{signs.python} on {signs.system}"),
        Finding(name="machine", found=memory),
    ]
    for what, free in signs.free.items():
        is_little = free < LEAST_FREE and what != "shared memory"
        text = f"{free / GIB:.1f} GiB free"
        found.append(
            Finding(
                name=what, found=text, state="wrong" if is_little else "good",
                fix="make room: checkpoints and models go there" if is_little else "",
            )
        )  # fmt: skip
    return found


def _backends(signs: Signs) -> list[Finding]:
    packages = signs.packages
    found = [Finding(name="Keras", found=packages.get("keras", ""))]
    for name in BACKENDS:
        own = packages.get(name) or packages.get(f"{name}-cpu", "")
        if own:
            used = ", Keras computes with it" if name == signs.backend else ""
            found.append(Finding(name=name, found=own + used))
        else:
            is_used = name == signs.backend
            found.append(
                Finding(
                    name=name, found="", state="wrong" if is_used else "absent",
                    fix=f"pip install 'shoal[{name}]'",
                )
            )  # fmt: skip
    if signs.backend not in BACKENDS:
        found.append(
            Finding(
                name="KERAS_BACKEND", found=signs.backend, state="wrong",
                fix=f"set it to one of {', '.join(BACKENDS)}",
            )
        )  # fmt: skip
    return [*found, _gpus(signs)]


def _gpus(signs: Signs) -> Finding:
    if not signs.gpus:
        return Finding(name="GPUs", found="", state="absent")
    text = f"{len(signs.gpus)}: {', '.join(signs.gpus)}"
    if signs.backend in signs.reaching:
        return Finding(name="GPUs", found=text)
    others = [name for name in signs.reaching if name != signs.backend]
    way = f"; or set KERAS_BACKEND={others[0]}" if others else ""
    fixes = {
        "jax": "pip install 'jax[cuda12]'", "torch": "install torch's build for CUDA",
        "tensorflow": "pip install 'tensorflow[and-cuda]', not tensorflow-cpu",
    }  # fmt: skip
    return Finding(
        name="GPUs", found=f"{text}; the installed {signs.backend} cannot use them",
        state="wrong", fix=fixes.get(signs.backend, "install a build for CUDA") + way,
    )  # fmt: skip


def _clusters(signs: Signs) -> list[Finding]:
    packages = signs.packages
    found: list[Finding] = []
    for name, what, extra in (
        ("ray", "Ray", "ray"),
        ("pyspark", "Spark", "spark"),
        ("s3fs", "S3", "aws"),
    ):
        own = packages.get(name, "")
        fix = "" if own else f"pip install 'shoal[{extra}]'"
        state: State = "good" if own else "absent"
        found.append(Finding(name=what, found=own, state=state, fix=fix))
    needs_java = "pyspark" in packages and not signs.java
    found.append(
        Finding(
            name="Java", found=signs.java,
            state="wrong" if needs_java else "good" if signs.java else "absent",
            fix="install Java 17 (a JRE is enough): Spark runs on it"
            if needs_java else "",
        )
    )  # fmt: skip
    found.append(
        Finding(
            name="OpenSSH", found="ssh" if signs.has_ssh else "",
            state="good" if signs.has_ssh else "absent",
            fix="" if signs.has_ssh else "install openssh-client to reach hosts",
        )
    )  # fmt: skip
    found.append(
        Finding(
            name="AWS credentials", found=signs.aws,
            state="good" if signs.aws else "absent",
            fix="" if signs.aws else "aws configure, or set AWS_PROFILE",
        )
    )  # fmt: skip
    return found
