"""A run on object storage whose container is lost is resumed from another one."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import shoal
from shoal.errors import ConfigError
from shoal.runs.catalogue import read_summary, run_ids
from shoal.runs.folder import Folder
from shoal.runs.heartbeat import HEARTBEATS, LOST_S
from tests.habits.resume_case import EPOCHS
from tests.habits.test_resume import CASE, TRAINED
from tests.runs.test_writer import HAS_NAMESPACES, INSIDE
from tests.s3 import Bucket

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("resume")]


@pytest.mark.skipif(not HAS_NAMESPACES, reason="needs a process namespace of its own")
@pytest.mark.parametrize(
    "strategy", [pytest.param("aeasgd", marks=pytest.mark.slow), "all_reduce"]
)
def test_a_run_on_storage_goes_on_in_another_container(
    s3: Bucket, strategy: str
) -> None:
    root = f"{s3.url}/runs"
    train = [sys.executable, str(CASE), root, strategy, str(EPOCHS - 1), "0"]
    # The first process of a container cannot end itself by a signal.
    inside = [*INSIDE, "sh", "-c", '"$@"; exit $?', "sh", *train]
    ended = subprocess.run(inside, capture_output=True, text=True)
    assert ended.returncode == 128 + signal.SIGKILL, ended.stderr
    [name] = run_ids(root)
    folder = Folder.at(root).child(name)
    with pytest.raises(ConfigError, match="last heard"):
        shoal.resume(folder.url)
    [beat] = folder.names(HEARTBEATS)
    s3.make_older(f"runs/{name}/{HEARTBEATS}/{beat}", LOST_S + 60)
    history = shoal.resume(folder.url)
    assert history.epoch == list(range(EPOCHS))
    found = read_summary(folder)
    assert found.status == "finished"
    assert found.samples_committed == found.samples_expected == TRAINED * EPOCHS
    assert not {"checkpoints", "inputs", HEARTBEATS} & set(folder.names())
