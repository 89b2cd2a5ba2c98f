from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.crc32c import masked_crc32c
from shoal.runs.folder import Folder
from shoal.runs.tensorboard import ScalarWriter, scalar_event, version_event


def test_checksum_of_the_rfc():
    # RFC 3720, appendix B.4.
    for data, crc in ((bytes(32), 0x8A9136AA), (bytes(range(32)), 0x46DD794E)):
        turned = (crc >> 15 | crc << 17) + 0xA282EAD8
        assert masked_crc32c(data) == turned & 0xFFFFFFFF


def scalars(folder: Path) -> list[tuple[int, str, float, float]]:
    """What TensorBoard itself reads."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing import (
        directory_watcher,
        event_file_loader,
        io_wrapper,
    )
    from tensorboard.util.tensor_util import make_ndarray

    watcher = directory_watcher.DirectoryWatcher(
        str(folder),
        event_file_loader.EventFileLoader,
        io_wrapper.IsTensorFlowEventsFile,
    )
    return [
        (event.step, value.tag, float(make_ndarray(value.tensor)), event.wall_time)
        for event in watcher.Load()
        for value in event.summary.value
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("place", ["local", "memory"])
def test_tensorboard_reads_the_files(place: str, tmp_path: Path):
    url = str(tmp_path / "tb") if place == "local" else f"memory://{tmp_path.name}"
    folder = Folder.at(url)
    writer = ScalarWriter(folder)
    for epoch in range(300):
        metrics = {"loss": 1 / (epoch + 1), "val_loss": 2.0, "note": "text", "x": None}
        writer.write_epoch(1e9 + epoch, epoch, metrics)
    if place == "memory":
        folder.fs.get(folder.path, str(tmp_path / "tb"), recursive=True)
    train = scalars(tmp_path / "tb" / "train")
    assert [row[0] for row in train] == list(range(300))
    assert {row[1] for row in train} == {"epoch_loss"}
    assert train[3][2:] == (0.25, 1e9 + 3)
    assert len(scalars(tmp_path / "tb" / "validation")) == 300
    assert len(os.listdir(tmp_path / "tb" / "train")) == (
        1 if place == "local" else 300
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_encoding_is_that_of_protobuf():
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event(wall_time=1.5, step=300)
    for tag, number in {"a": 0.5, "b" * 200: -1.0}.items():
        event.summary.value.add(tag=tag, simple_value=number)
    ours = scalar_event(1.5, 300, {"a": 0.5, "b" * 200: -1.0})
    assert Event.FromString(ours) == event
    version = Event(wall_time=1.5, file_version="brain.Event:2")
    assert Event.FromString(version_event(1.5)) == version


def test_epochs_without_validation_make_no_folder(tmp_path: Path):
    ScalarWriter(Folder.at(tmp_path)).write_epoch(1.0, 0, {"loss": 1.0})
    assert os.listdir(tmp_path) == ["train"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_use_of_machines_is_written_with_the_epoch(tmp_path: Path):
    writer = ScalarWriter(Folder.at(tmp_path))
    for percent in (50.0, 100.0):
        gpu = {"number": 0, "percent": percent, "memory_mib": 7.0, "watts": None}
        writer.note_use({"node": "../10.0.0.7", "percent": 25.0, "gpus": [gpu]})
    writer.write_epoch(1.0, 0, {"val_loss": 1.0})  # of an earlier epoch
    writer.write_epoch(2.0, 3, {"loss": 1.0})
    writer.write_epoch(3.0, 4, {"loss": 1.0})
    assert sorted(os.listdir(tmp_path)) == ["nodes", "train", "validation"]
    found = scalars(tmp_path / "nodes" / "__10.0.0.7")
    assert [row[:3] for row in found] == [
        (3, "GPU_0_mean_percent", 75.0),
        (3, "GPU_0_most_memory_mib", 7.0),
        (3, "cores_mean_percent", 25.0),
    ]


@pytest.mark.parametrize("node", ["../../x", "/etc", "..", "a/b", "\x1b[2J", "n" * 999])
def test_the_name_of_a_machine_is_one_folder(node: str, tmp_path: Path):
    writer = ScalarWriter(Folder.at(tmp_path / "a" / "b" / "c"))
    writer.note_use({"node": node, "percent": 1.0})
    writer.write_epoch(1e9, 0, {"loss": 1.0})
    [folder] = (tmp_path / "a" / "b" / "c" / "nodes").iterdir()
    assert folder.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
