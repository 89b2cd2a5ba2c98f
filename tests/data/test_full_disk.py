"""Batches of a generator, and a temporary folder that has no room for them."""

from __future__ import annotations

import itertools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.data import feeding
from shoal.data.batches import Packing
from shoal.data.feeding import Feed
from shoal.data.spool import BatchKey, Spool
from shoal.errors import DataError

PACKING = Packing(kind="generator", floatx="float32")


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    """Lets no file of this process grow beyond some bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def set_limit(most: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))

    yield set_limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def feed_of(spool: Spool) -> Feed:
    batches = (np.full((1000, 10), n, "float32") for n in itertools.count())
    return Feed(
        spool, lambda epoch: batches, [1000] * 5, packing=PACKING, epochs=range(1)
    )


def test_a_waiting_worker_learns_that_a_batch_has_no_room(
    limit: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for ten minutes: that there was none had no room, either."""
    monkeypatch.setattr(feeding, "ROOM_S", 0.0)
    spool = Spool.planned("generator", wait_s=20.0)
    with spool.open():
        limit(1000)
        with feed_of(spool) as feed:
            with pytest.raises(DataError) as caught:
                spool.read(BatchKey(0, 0))
            assert isinstance(feed.failure, DataError)
        assert str(caught.value) == str(feed.failure)
        assert [path for path in spool.folder.iterdir() if "-" in path.name] == []
    text = str(caught.value)
    assert text.startswith("Cannot write batch 0 of the generator for workers: File")
    assert "Expected to write files" in text
    assert text.endswith("Raise that limit, or use smaller data.")


def test_a_batch_is_written_when_there_is_room_again(
    limit: Callable[[int], None],
) -> None:
    spool = Spool.planned("generator", wait_s=20.0)
    with spool.open():
        limit(1000)
        with feed_of(spool):
            wanted = spool.folder / "marks" / "0-0"
            wanted.touch()
            until = time.monotonic() + 20
            while wanted.exists() and time.monotonic() < until:
                time.sleep(0.001)
            limit(1 << 20)
            assert [spool.read(BatchKey(0, n)).rows[0, 0] for n in range(5)] == [
                *range(5)
            ]


SMALL = """
import itertools, json, sys
import numpy as np
from shoal.data import feeding
from shoal.data.batches import Packing
from shoal.data.feeding import Feed
from shoal.data.spool import BatchKey, Spool

feeding.ROOM_S, feeding.KEPT_BATCHES = 0.0, int(sys.argv[1])
spool = Spool.planned("generator", wait_s=30.0)
batches = (np.full((1000, 10), n, "float32") for n in itertools.count())
feed = Feed(
    spool, lambda epoch: batches, [1000] * 60,
    packing=Packing(kind="generator", floatx="float32"), epochs=range(1),
)
read, told = [], ""
with spool.open(), feed:
    try:
        for number in range(60):
            read.append(int(spool.read(BatchKey(0, number)).rows[0, 0]))
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
print(json.dumps([read, told]))
"""


def on_small_disk(
    folder: Path, kept: int, entries: int = 1000
) -> tuple[list[int], str]:
    """Reads 60 batches of 40 KB through a temporary folder of 1 MB."""
    inside = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    mount = f'mount -t tmpfs -o size=1m,nr_inodes={entries} none {folder}; exec "$@"'
    done = subprocess.run(
        [*inside, "sh", "-c", mount, "sh", sys.executable, "-c", SMALL, str(kept)],
        env={"TMPDIR": str(folder), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    read, told = json.loads(done.stdout)
    return read, told


@pytest.mark.process
def test_batches_that_were_read_make_room_on_a_small_disk(tmp_path: Path) -> None:
    assert on_small_disk(tmp_path, kept=4) == ([*range(60)], "")


@pytest.mark.process
@pytest.mark.slow
def test_batches_are_read_although_marks_cannot_be_written(
    tmp_path: Path,
) -> None:
    read, told = on_small_disk(tmp_path, kept=60, entries=30)
    assert read == [*range(len(read))]
    assert read
    assert "No space left on device" in told


@pytest.mark.process
@pytest.mark.slow
def test_a_full_disk_is_an_error_where_no_batch_can_be_deleted(tmp_path: Path) -> None:
    read, told = on_small_disk(tmp_path, kept=60)
    assert read == [*range(len(read))]
    assert 20 < len(read) < 30
    assert told.startswith(
        f"DataError: Cannot write batch {len(read)} of the generator"
    )
    assert "No space left on device" in told
