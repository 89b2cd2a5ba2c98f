"""Makes an archive of a run that was broken off, for `tests/habits/test_older_runs.py`.

Run it before a change of what is written or pickled, with the code as it was:
`python tests/golden/runs/make.py NAME STRATEGY`. It uses public functions alone, so
that it runs with older versions too. Callbacks are those of Keras: code of a script
would be of one version of Python.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

TRAIN = """
import sys
import keras
import numpy as np
import shoal

if __name__ == "__main__":
    x = np.random.default_rng(0).random((256, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    shoal.fit(
        model, x, y, workers=2, epochs=EPOCHS, verbose=0, run=sys.argv[1],
        strategy=sys.argv[2], validation_data=(x[:32], y[:32]),
        callbacks=[keras.callbacks.EarlyStopping(monitor="loss", patience=999)],
    )
"""
EPOCHS = 100
CHECKPOINTS = 2


def main(name: str, strategy: str) -> None:
    """Trains until there are checkpoints, kills the script, packs its run.

    Args:
        name: Name of the archive, without its ending.
        strategy: Name of a strategy.
    """
    with tempfile.TemporaryDirectory() as home:
        script = Path(home) / "train.py"
        script.write_text(TRAIN.replace("EPOCHS", str(EPOCHS)))
        command = [sys.executable, script.name, "golden", strategy]
        with subprocess.Popen(command, cwd=home) as process:
            while process.poll() is None:
                written = list(Path(home).glob("*/*/checkpoints/*.manifest"))
                newest = max((path.name for path in written), default="")
                if newest > f"000001-{CHECKPOINTS:012}":
                    process.kill()
        [run] = Path(home).glob("*/*-golden-*")
        with tarfile.open(Path(__file__).parent / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(run, "run", filter=without_owner)


def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leaves out who made it, and files that no reader of a run opens."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    is_left_out = "tensorboard" in member.name or member.name.endswith(".partial")
    return None if is_left_out else member


if __name__ == "__main__":
    main(*sys.argv[1:])
