"""A run whose process is killed goes on in another one, to the same end."""

from __future__ import annotations

import json
import pickle
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import keras
import numpy as np
import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.app import app
from shoal.errors import CheckpointError, ConfigError, PlanError
from shoal.runs.store import open_run
from shoal.strategies import get
from shoal.training import resuming
from shoal.training.inputs import read_inputs
from tests.habits.resume_case import EPOCHS, ROWS, data, train

# In one process of pytest: the broken-off run is made once.
pytestmark = [pytest.mark.process, pytest.mark.xdist_group("resume")]

CASE = Path(__file__).with_name("resume_case.py")
TRAINED = ROWS * 4 // 5  # the rest is for validation
KEYS = {"accuracy", "loss", "val_accuracy", "val_loss"}


def break_off(root: Path, strategy: str, epoch: int, batch: int = 0) -> Path:
    """Trains in another process until it is killed; returns the folder of the run."""
    command = [sys.executable, str(CASE), str(root), strategy, str(epoch), str(batch)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    [folder] = root.iterdir()
    return folder


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its last epoch, with two checkpoints."""
    return break_off(tmp_path_factory.mktemp("broken"), "aeasgd", EPOCHS - 1)


@pytest.fixture
def folder(broken_off: Path, tmp_path: Path) -> Path:
    """A copy of that run, alone in a folder."""
    return Path(shutil.copytree(broken_off, tmp_path / broken_off.name))


def check_end(history: shoal.api.History, folder: Path) -> None:
    assert set(history.history) == KEYS
    assert history.epoch == list(range(EPOCHS))
    assert {len(values) for values in history.history.values()} == {EPOCHS}
    found = open_run(str(folder)).summary()
    assert found.status == "finished"
    assert found.samples_committed == found.samples_expected == TRAINED * EPOCHS
    assert found.epochs == EPOCHS
    left = {path.name for path in folder.iterdir()}
    assert not left & {"checkpoints", "inputs"}  # nobody needs them any more


@pytest.fixture(scope="module")
def undisturbed() -> Any:
    return train(False, "all_reduce")


@pytest.mark.parametrize("batch", [pytest.param(0, marks=pytest.mark.slow), 25])
def test_all_reduce_resumes_bit_for_bit(
    tmp_path: Path, batch: int, undisturbed: Any
) -> None:
    model, told = undisturbed
    folder = break_off(tmp_path, "all_reduce", 2, batch)
    history = shoal.resume(folder)
    check_end(history, folder)
    assert history.history["loss"] == told.history["loss"]
    for ours, theirs in zip(
        history.model.get_weights(), model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_a_run_is_resumed_with_another_number_of_workers(folder: Path) -> None:
    check_end(shoal.resume(folder, workers=1), folder)
    assert open_run(str(folder)).summary().workers == 1


def test_a_run_without_checkpoints_starts_again_only_with_force(folder: Path) -> None:
    for name in (folder / "checkpoints").glob("*.manifest"):
        name.unlink()
    with pytest.raises(
        CheckpointError, match=r"3 epochs have ended\..* pass force=True"
    ):
        shoal.resume(folder)
    told = ["runs", "--root", str(folder.parent), "resume", folder.name[:12]]
    result = CliRunner().invoke(app, [*told, "--force"])
    assert result.exit_code == 0, result.output
    told_of = " ".join(open_run(str(folder)).summary().warnings)
    assert "the 3 epochs that ended are trained again" in told_of
    counts = f"{TRAINED * EPOCHS:,} of {TRAINED * EPOCHS:,} committed"
    assert counts in " ".join(result.output.split())
    assert (folder / "models" / "last.keras").is_file()


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(folder: Path) -> None:
    newest = max((folder / "checkpoints").glob("*.manifest"))
    parts = sorted((folder / "checkpoints" / "parts").glob(f"{newest.stem}-*"))
    content = bytearray(parts[-1].read_bytes())
    content[0] ^= 1
    parts[-1].write_bytes(content)
    with pytest.warns(shoal.errors.ShoalWarning, match="is damaged"):
        history = shoal.resume(folder)
    check_end(history, folder)


def test_missing_newest_checkpoints_are_warned_of(folder: Path) -> None:
    record = open_run(str(folder))
    warned: list[str] = []
    inputs = read_inputs(record.folder)
    resume_state: Any = SimpleNamespace(diary=SimpleNamespace(epoch=EPOCHS - 1))
    resuming._check_nothing_is_lost(record, inputs, resume_state, CALL, warned.append)
    assert warned == []
    resume_state.diary.epoch = 1
    resuming._check_nothing_is_lost(record, inputs, resume_state, CALL, warned.append)
    assert "the last 2 epochs that ended are trained again" in warned[0]


CALL = resuming.Call(run="")


def test_a_changed_bit_of_the_initial_state_is_found(folder: Path) -> None:
    file = folder / "inputs" / "inputs.pickle"
    content = file.read_bytes()
    drawn = np.random.default_rng(2).integers(0, 8 * len(content), 40)
    for bit in [*range(0, 8 * 90, 7), *drawn.tolist()]:
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with pytest.raises(CheckpointError, match="cannot be read from"):
            read_inputs(open_run(str(folder)).folder)
    for cut in (0, 10, 50, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:cut])
        with pytest.raises(CheckpointError, match="cannot be read from"):
            read_inputs(open_run(str(folder)).folder)


def test_data_records_of_older_runs_are_read(folder: Path) -> None:
    file = folder / "inputs" / "inputs.pickle"
    before = read_inputs(open_run(str(folder)).folder)
    file.write_bytes(file.read_bytes().partition(b"\n")[2])
    found = read_inputs(open_run(str(folder)).folder)
    assert found.packed == before.packed
    assert found.plan == before.plan


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="groups of JAX")
def test_a_run_with_jax_groups_of_older_versions_is_resumed_without_groups(
    folder: Path,
) -> None:
    """Earlier versions formed them."""
    inputs = read_inputs(open_run(str(folder)).folder)
    asked, strategy = inputs.plan.request, get("all_reduce")
    request = replace(asked, strategy=strategy, collective="native")
    before = replace(inputs.plan, request=request)
    plan, _ = resuming._prepare(replace(inputs, plan=before), CALL)
    assert plan.collective == "shared"


def test_plans_of_older_runs_get_their_request(folder: Path) -> None:
    """They had copies of its options, and it lay beside them."""
    file = folder / "inputs" / "inputs.pickle"
    before = read_inputs(open_run(str(folder)).folder)
    index = pickle.loads(file.read_bytes().partition(b"\n")[2])
    plan, request = vars(index.inputs.plan), index.inputs.plan.request
    plan |= {**vars(request), **plan, "backend": "jax", "data_rows": TRAINED}
    del plan["request"], plan["growth"]
    vars(index.inputs)["request"] = request
    file.write_bytes(cloudpickle.dumps(index))
    found = read_inputs(open_run(str(folder)).folder)
    assert found.plan == before.plan
    assert found.plan.to_json() == before.plan.to_json()
    check_end(shoal.resume(folder, workers=1, verbose=0), folder)


def test_other_data_is_refused(folder: Path) -> None:
    x, y = data()
    other = x.copy()
    other[700, 3] += 1
    given: list[tuple[Any, Any, str]] = [
        (other, y, "sample 700 differs"),
        (x, 1 - y, "sample 0 differs"),
        (x[:1000], y[:1000], "it has 800 samples, and there were 1,200"),
        (x.astype("f8")[:, :5], y, r"its columns are data\[0\] float32\(5,\)"),
        (x, None, "its columns are"),
    ]
    for more, targets, reason in given:
        with pytest.raises(PlanError, match=f"is not what fit was given: {reason}"):
            shoal.resume(folder, more, targets)
    with pytest.raises(PlanError, match="validation_data of resume is not what"):
        shoal.resume(folder, validation_data=(x[:300], y[:300]))
    with pytest.raises(ConfigError, match="y or sample_weight without x"):
        shoal.resume(folder, y=y)
    assert open_run(str(folder)).summary().status != "running"  # as it was


@pytest.mark.slow
def test_the_same_data_may_be_given_again(folder: Path) -> None:
    check_end(shoal.resume(folder, *data(), verbose=0), folder)


def test_runs_that_cannot_be_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run 'nothing'"):
        shoal.resume("nothing")
    with pytest.raises(ConfigError, match="run=3 cannot be used"):
        shoal.resume(3)  # pyright: ignore[reportArgumentType]
    _, history = train(str(tmp_path), "aeasgd")
    with pytest.raises(ConfigError, match=r"has finished\. .*last\.keras"):
        shoal.resume(history.run)
    folder = Path(history.run.url)
    events = folder / "events"
    last = max(events.glob("*.jsonl"))
    lines = last.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["kind"] != "run_finished"]
    last.write_bytes(b"".join(kept))
    with pytest.raises(ConfigError, match="is running"):
        shoal.resume(folder)  # this process wrote it, and lives
    with pytest.raises(CheckpointError, match="its model and settings are not in"):
        shoal.resume(folder, force=True)


def test_a_callback_that_would_see_no_scores(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = read_inputs(open_run(str(folder)).folder)
    request = replace(inputs.plan.request, validation="async")
    late = replace(inputs, plan=replace(inputs.plan, request=request))
    monkeypatch.setattr("shoal.training.resuming.read_inputs", lambda _: late)
    with pytest.raises(PlanError, match=r"EarlyStopping\(monitor='val_loss'\)"):
        shoal.resume(folder, callbacks=[keras.callbacks.EarlyStopping()])
    assert open_run(str(folder)).summary().status != "running"  # as it was


def test_a_refused_resume_leaves_the_run_as_it_was_though_it_warned(
    folder: Path,
) -> None:
    # Without the newest one alone there is not always a warning: the run may have been
    # killed before the checkpoint of its last epoch was written.
    for manifest in (folder / "checkpoints").glob("*.manifest"):
        manifest.unlink()
    x, y = data()
    for _ in range(2):
        with (
            pytest.warns(shoal.errors.ShoalWarning, match="trained again"),
            pytest.raises(PlanError, match="is not what fit was given"),
        ):
            shoal.resume(folder, x + 1, y, force=True)
        assert open_run(str(folder)).summary().status == "lost"


def test_a_run_of_another_backend(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = keras.backend.backend()
    other = "jax" if here == "torch" else "torch"
    monkeypatch.setattr("keras.backend.backend", lambda: other)
    with pytest.raises(PlanError, match=f"KERAS_BACKEND={here}"):
        shoal.resume(folder)
