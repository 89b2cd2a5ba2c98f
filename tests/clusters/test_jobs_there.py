"""Jobs on a host: whose folder they are in. A cluster of hosts has the rest."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from shoal.clusters.host_agent.answering import UserError
from shoal.clusters.host_agent.jobs import jobs, jobs_folder, remove_job, stop_job


def test_users_of_a_shared_folder_have_folders_of_their_own(tmp_path: Path) -> None:
    found = jobs_folder(str(tmp_path))
    assert found == tmp_path / f".shoal-{os.getuid()}" / "jobs"
    assert jobs({"shared": str(tmp_path)}) == {"jobs": []}


@pytest.mark.parametrize("mode", [stat.S_IWGRP, stat.S_IWOTH])
def test_a_folder_that_others_can_write_to_is_not_used(
    tmp_path: Path, mode: int
) -> None:
    base = jobs_folder(str(tmp_path)).parent
    base.mkdir()
    base.chmod(0o700 | mode)
    with pytest.raises(UserError, match="only you can write"):
        jobs({"shared": str(tmp_path)})
    base.chmod(0o755)
    assert jobs({"shared": str(tmp_path)}) == {"jobs": []}


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    jobs_folder(str(tmp_path)).parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="only you can write"):
        jobs_folder(str(tmp_path))


@pytest.mark.parametrize("name", ["..", "../..", "/tmp", "", "a/b", "a\0", "-x"])
def test_an_id_cannot_address_another_folder(name: str, tmp_path: Path) -> None:
    keep = tmp_path / f".shoal-{os.getuid()}" / "keep"
    keep.mkdir(parents=True)
    request = {"shared": str(tmp_path), "id": name, "grace_s": 0.0}
    for verb in (remove_job, stop_job):
        with pytest.raises(UserError, match="no job is called"):
            verb(request)
    assert keep.is_dir()


def test_the_id_of_a_job_is_the_name_of_its_folder(tmp_path: Path) -> None:
    folder = jobs_folder(str(tmp_path)) / "2026-11-21-shoal-fit-a3f"
    folder.mkdir(parents=True, mode=0o700)
    record = {"id": "../../..", "script": "go.py", "began": 1.0, "pids": {}}
    (folder / "job.json").write_text(json.dumps(record))
    [found] = jobs({"shared": str(tmp_path)})["jobs"]
    assert found["id"] == folder.name
