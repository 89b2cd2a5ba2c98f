"""The show: three hosts boot by the template's own user data, and train.

One file, `up`, a script of EasyDist on CIFAR-10 in a bucket, a host that dies in the
middle of an epoch, `down`. moto is AWS, over the network; namespaces are the machines.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shoal.cli.app import app
from shoal.clusters.cluster_state import ClusterState, ClusterStore
from shoal.runs.catalogue import list_runs, read_summary
from shoal.runs.folder import Folder
from tests.aws.conftest import OUTSIDE
from tests.aws.machines import Machines
from tests.clusters.aws_files import write
from tests.hosts import skip_or_fail

pytestmark = [
    pytest.mark.aws_full,
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.data,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]
LIMIT_S = 240.0
IMAGES, EPOCHS = 1000, 20

MODEL = """
import keras
from shoal.easydist import ExecutionEnvironment

model = keras.Sequential([
    keras.Input((32, 32, 3)),
    keras.layers.Conv2D(64, 3, activation="relu"),  # large, so that an epoch lasts
    keras.layers.Conv2D(64, 3, strides=2, activation="relu"),
    keras.layers.GlobalAveragePooling2D(),
    keras.layers.Dense(10, activation="softmax"),
], name="cifar")
model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
ExecutionEnvironment(
    bucket="cifar", prefix="train", epochs={epochs}, batch_size=10, opt="adam"
).fit()
"""

PREPROCESSING = """
import numpy as np
from PIL import Image

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse",
         "ship", "truck"]


class Preprocessing:
    def preprocess(self, keys, objects):
        x = np.stack([np.asarray(Image.open(one), "float32") / 255 for one in objects])
        y = np.array([NAMES.index(key.split("/")[-2]) for key in keys])
        return x, y, len(x)
"""

SETUP = """#!/bin/bash
touch /opt/is-set-up
"""


@pytest.fixture(autouse=True)
def _loopback_only() -> None:
    """Hosts of this test are at a bridge of this machine, without a way out."""


@dataclass
class Show:
    """The machines, moto, and the command line."""

    folder: Path
    machines: Machines
    shared: Path
    ids: set[str] = field(default_factory=set[str])

    def shoal(self, *words: str | Path) -> Result:
        said = [str(word) for word in words]
        return CliRunner().invoke(app, said, prog_name="shoal")

    def state(self) -> ClusterState:
        found = ClusterStore(os.environ["SHOAL_CLUSTERS"]).get("prod")
        self.ids.add(found.id)
        return found

    def left(self) -> list[Path]:
        """Folders of nodes; hosts share /tmp here."""
        return [p for one in self.ids for p in Path("/tmp").glob(f"shoal-{one}-*")]

    def joined(self, state: ClusterState) -> list[Any]:
        """What agents say of their joining.

        `status` would ask all hosts, again and again.
        """
        s3, bucket = self.machines.client("s3"), str(state.facts["bucket"])
        where = {"Bucket": bucket, "Prefix": f"clusters/prod/{state.id}/joined/"}
        keys = [one["Key"] for one in s3.list_objects_v2(**where).get("Contents", ())]
        read = (s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys)
        found = [json.loads(text) for text in read]
        s3.close()
        return found

    def wait_for(
        self, what: Callable[[], bool], words: str, limit_s: float = LIMIT_S
    ) -> float:
        """Waits until something is so; returns the seconds it took."""
        began = time.monotonic()
        while not what():
            assert not self.machines.errors, self.machines.errors
            if time.monotonic() - began > limit_s:
                pytest.fail(f"{words}\n{self.logs()}")
            time.sleep(0.5)
        return time.monotonic() - began

    def logs(self) -> str:
        found = sorted(self.folder.glob("i-*/*log"))
        return "\n".join(f"== {path}\n{path.read_text()[-3000:]}" for path in found)

    def job(self, job: str) -> Any:
        listed = json.loads(self.shoal("jobs", "--cluster", "prod", "--json").stdout)
        return next(one for one in listed if one["id"] == job)


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Show]:
    if os.geteuid() != 0:
        skip_or_fail("root, for namespaces")
    for name in OUTSIDE:
        monkeypatch.delenv(name, raising=False)
    for name in ("moto", "shared", "home"):
        (tmp_path / name).mkdir()
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "ann"],
        check=True,
    )
    machines = Machines(
        tmp_path, tmp_path / "shared", (tmp_path / "ann.pub").read_text()
    )
    script = Path(__file__).with_name("moto_server.py")
    try:
        with subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "moto"), machines.address],
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as server:  # fmt: skip
            assert server.stdout is not None
            assert server.stdin is not None
            endpoint = server.stdout.readline().strip()
            for name, value in {
                "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "ann",
                "AWS_SECRET_ACCESS_KEY": "ann", "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_CONFIG_FILE": os.devnull, "HOME": str(tmp_path / "home"),
                "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                "SHOAL_CLUSTERS": str(tmp_path / "known"),
            }.items():  # fmt: skip
                monkeypatch.setenv(name, value)
            machines.start(endpoint)
            show = Show(tmp_path, machines, tmp_path / "shared")
            try:
                yield show
            finally:
                machines.close()  # while moto answers
                server.stdin.close()
                for path in show.left():  # a test that failed
                    shutil.rmtree(path)
    finally:
        machines.close()


def _upload(show: Show) -> None:
    """Puts images to a bucket of their own."""
    s3 = show.machines.client("s3")
    s3.create_bucket(Bucket="cifar")
    archive = Path(os.environ["SHOAL_DATA"]) / "cifar10_20k_jpg.zip"
    with zipfile.ZipFile(archive) as images:
        names = [name for name in images.namelist() if name.startswith("train/")]
        for name in sorted(names, key=lambda name: name[::-1])[:IMAGES]:
            s3.put_object(Bucket="cifar", Key=name, Body=images.read(name))
    s3.close()


def _lists(show: Show, path: str) -> list[str]:
    """A file of all nodes, by ssh."""
    found: list[str] = []
    for node in show.state().nodes:
        words = show.state().way_to(node).words
        done = subprocess.run(
            [*words, f"cat {path}"], capture_output=True, text=True, check=False
        )
        found.append(done.stdout)
    return found


def test_the_show(show: Show, capsys: pytest.CaptureFixture[str]) -> None:
    _upload(show)
    setup = show.folder / "setup.sh"
    setup.write_text(SETUP)
    file = write(
        show.folder,
        workers={"type": "m5.large", "count": 2, "min": 1, "disk_gib": 20},
        access={"key": str(show.folder / "ann.pub")},
        network={"cidr": show.machines.cidr},
        storage={"shared": "efs", "mount": "/opt/efs"},
        environment={"python": sys.executable},
        setup=str(setup),
        wait_minutes=6,
    )
    began = time.monotonic()
    done = show.shoal("cluster", "up", file, "--yes")
    up_s = time.monotonic() - began
    assert done.exit_code == 0, f"{done.output}\n{show.logs()}"
    assert "3 of 3 hosts run" in done.output
    signals = (show.folder / "signals").read_text()
    assert json.loads(signals)["Status"] == "SUCCESS"
    assert show.shoal("cluster", "status", "prod").exit_code == 0
    told = json.loads(show.shoal("cluster", "health", "prod", "--json").stdout)
    for node in told:
        found = {one["name"]: one["found"] for one in node["findings"]}
        assert (found["service"], found["mount"]) == ("active", "mounted"), found
    workers = [one.private for one in show.state().nodes]
    show.wait_for(
        lambda: _lists(show, "/opt/shoal/workers") == [
            "".join(f"{address}\n" for address in workers)
        ] * 3,
        "all nodes list all",
    )  # fmt: skip

    for name, text in (("model.py", MODEL), ("preprocessing.py", PREPROCESSING)):
        (show.folder / name).write_text(text.replace("{epochs}", str(EPOCHS)))
    script, beside = show.folder / "model.py", show.folder / "preprocessing.py"
    sent = show.shoal("submit", script, "--with", beside, "--cluster", "prod")
    assert sent.exit_code == 0, sent.output
    job = sent.stdout.split()[0]
    log = Path(show.job(job)["log"])
    log = show.shared / log.relative_to("/opt/efs")

    def said() -> str:
        assert show.job(job)["state"] == "running", log.read_text()[-6000:]
        return log.read_text()

    show.wait_for(lambda: "of epoch 2/" in said(), "the second epoch begins")
    before = show.state()
    names: Any = before.facts["names"]
    by_name = {name: instance for instance, name in names.items()}
    lost = by_name["prod-worker1"]
    show.machines.lose(lost)

    def has_joined() -> bool:
        return any(one["state"] == "joined" for one in show.joined(before))

    assert not has_joined()
    replaced_s = show.wait_for(has_joined, "another worker joins")
    told = json.loads(show.shoal("cluster", "status", "prod", "--json").stdout)
    runs = [one["address"] for one in told if one["state"] == "runs"]
    assert "prod-worker3" in runs
    assert "prod-worker1" not in runs
    now = [one.private for one in show.state().nodes]
    assert len(now) == 3
    assert set(now) != set(workers)
    show.wait_for(
        lambda: all(
            sorted(text.split()) == sorted(now)
            for text in _lists(show, "/opt/shoal/workers")
        ),
        "the lists follow",
    )
    show.wait_for(lambda: show.job(job)["state"] != "running", "the job ends")
    assert show.job(job)["state"] == "done", log.read_text()[-6000:]
    root = str(before.runs)
    [run] = list_runs(root)
    summary = read_summary(Folder.at(f"{root}/{run.id}"))
    assert summary.samples_committed == EPOCHS * IMAGES
    assert summary.workers_lost >= 1
    with capsys.disabled():
        print(
            f"\nup {up_s:.0f} s, a lost worker replaced {replaced_s:.0f} s after its "
            f"death, {summary.samples_committed:,} samples"
        )
    ended = show.shoal("cluster", "down", "prod")
    assert "machines given back" in ended.output, ended.output
    running = [m for m in show.machines.known.values() if m.first.poll() is None]
    show.wait_for(lambda: not [m for m in running if m.first.poll() is None], "ended")
    bucket, s3 = str(before.facts["bucket"]), show.machines.client("s3")
    keys = [one["Key"] for one in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    kept = (f"clusters/prod/{before.id}/", "runs/")
    assert [key for key in keys if not key.startswith(kept)] == []
    assert str(show.folder) not in Path("/proc/self/mounts").read_text()
    # Of the host that died.
    assert [path.name for path in show.left()] == [f"shoal-{before.id}-1"]
    s3.close()


@pytest.mark.timeout(1800)
def test_machines_install_by_wheels_and_later_ones_by_those_of_the_bucket(
    show: Show,
) -> None:
    """No host has an index of packages, or any way out."""
    wheels = show.folder / "wheels"
    file = write(
        show.folder,
        workers={"type": "m5.large", "count": 1, "min": 1, "disk_gib": 20},
        access={"key": str(show.folder / "ann.pub")},
        network={"cidr": show.machines.cidr},
        storage={"shared": "efs", "mount": "/opt/efs", "runs": "shared"},
        # On these hosts python3.N is a link, which makes no environments.
        environment={"wheels": str(wheels), "base": os.path.realpath(sys.executable)},
        wait_minutes=6,
    )
    needed = show.shoal("cluster", "requirements", file)
    (show.folder / "r.txt").write_text(needed.stdout)
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "-d", wheels,
         "-r", show.folder / "r.txt"],
        check=True,
    )  # fmt: skip
    done = show.shoal("cluster", "up", file, "--yes")
    assert done.exit_code == 0, f"{done.output}\n{show.logs()}"
    assert "2 of 2 hosts run" in done.output
    before = show.state()
    names: Any = before.facts["names"]
    [lost] = [one for one, alias in names.items() if alias == "prod-worker1"]
    show.machines.lose(lost)

    def has_joined() -> bool:
        told = show.joined(before)
        assert not [one for one in told if one["state"] == "failed"], told
        return any(one["state"] == "joined" for one in told)

    joined_s = show.wait_for(has_joined, "another worker joins", 900.0)
    [later] = [one for one in show.joined(before) if one["state"] == "joined"]
    environment = before.environment
    assert f"/.shoal/environments/{environment}/" in later["python"]
    told = json.loads(show.shoal("cluster", "status", "prod", "--json").stdout)
    assert "prod-worker2" in [one["address"] for one in told if one["state"] == "runs"]
    size = sum(path.stat().st_size for path in wheels.iterdir())
    sys.stdout.write(
        f"\n{size / 1e6:,.0f} MB of wheels; another worker had joined {joined_s:.0f} s "
        "after the death of one\n"
    )
    ended = show.shoal("cluster", "down", "prod")
    assert "machines given back" in ended.output, ended.output
    for path in show.left():  # of the host that died
        shutil.rmtree(path)
