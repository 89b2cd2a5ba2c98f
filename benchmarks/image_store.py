"""The cost of reading images from a bucket instead of a disk, and the learning curves.

Run: `python -m benchmarks.image_store [--epochs 8]`, with the CIFAR-10 images of
$SHOAL_DATA. It puts them into a store of this machine that speaks S3 over HTTP (moto,
in a process of its own), and trains the example's ResNet by `all_reduce` and `aeasgd`
from a folder, from the bucket, and from the folder again, as a machine's pace changes
in minutes. It prints samples/s of the first epoch and of the others, and writes a
picture of what was learnt.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

import shoal
from examples.image_folder import make_model

ARCHIVE = "cifar10_20k_jpg.zip"
BUCKET = "images"
STRATEGIES = ("all_reduce", "aeasgd")
BATCH_SIZES = {"all_reduce": 128, "aeasgd": 64}
SERVER = (
    "import sys, time; from moto.server import ThreadedMotoServer\n"
    "server = ThreadedMotoServer(port=0); server.start()\n"
    "print('PORT', server.get_host_and_port()[1], flush=True)\n"
    "sys.stdin.read(); server.stop()"
)


@contextmanager
def bucket() -> Generator[str]:
    """Starts the store and sets its address in the environment; yields its URL."""
    process: Any = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    try:
        line = next(text for text in process.stdout if text.startswith("PORT "))
        endpoint = f"http://127.0.0.1:{line.split()[1]}"
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": endpoint,
        }  # fmt: skip
        yield endpoint
    finally:
        process.stdin.close()
        process.wait()


def upload(folder: Path) -> float:
    """Puts every file into the bucket; returns seconds."""
    import boto3

    client: Any = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    began = time.perf_counter()

    def put(path: Path) -> None:
        key = path.relative_to(folder).as_posix()
        client.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(put, folder.rglob("*.jpg")))
    return time.perf_counter() - began


class Speeds(keras.callbacks.Callback):
    """Samples/s of each epoch, without its validation."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows, self.found = rows, list[float]()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self.began = time.perf_counter()

    def on_test_begin(self, logs: Any = None) -> None:
        """Stops the clock: the last sample of the epoch is committed."""
        self.found.append(self.rows / (time.perf_counter() - self.began))


def train(place: str, strategy: str, epochs: int, test: Any) -> dict[str, Any]:
    """Trains from a folder or a bucket; returns speeds and the curve."""
    keras.utils.set_random_seed(1)
    source = shoal.data.open_files(f"{place}/train/")
    speeds = Speeds(len(source))
    history = shoal.fit(
        make_model(), source, validation_data=test, strategy=strategy, workers=2,
        batch_size=BATCH_SIZES[strategy], epochs=epochs, callbacks=[speeds], run=False,
        verbose=2,
    )  # fmt: skip
    summary = history.run.summary()
    found = {
        "strategy": strategy,
        "place": place.partition(":")[0] if "://" in place else "disk",
        "first_epoch_per_s": round(speeds.found[0]),
        "warm_per_s": round(statistics.median(speeds.found[1:])),
        "committed": f"{summary.samples_committed:,} of {summary.samples_expected:,}",
        "accuracy": [round(v, 4) for v in history.history["val_accuracy"]],
        "loss": [round(v, 4) for v in history.history["loss"]],
    }
    print(json.dumps(found), flush=True)
    return found


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Loss and accuracy against epochs, a line for each run."""
    from matplotlib.figure import Figure

    figure = Figure((9, 3.4), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, name in zip(axes, ("loss", "accuracy"), strict=True):
        for run in found:
            epochs = range(1, len(run[name]) + 1)
            style = "-" if run["place"] == "disk" else "--"
            label = f"{run['strategy']}, {run['place']}"
            color = f"C{STRATEGIES.index(run['strategy'])}"
            axis.plot(epochs, run[name], style, color=color, label=label)
        axis.set_xlabel("epoch")
        axis.grid(alpha=0.3)
    axes[0].set_title("loss of the training")
    axes[1].set_title("accuracy on 4,000 images it has not seen")
    axes[1].legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Trains four times, and prints the cost of the bucket."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--picture", type=Path, default=Path("image-folder.png"))
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--every", type=int, default=1, help="of so many images one")
    given = parser.parse_args()
    archive = Path(os.environ["SHOAL_DATA"]) / ARCHIVE
    with tempfile.TemporaryDirectory(prefix="shoal-images-") as folder, bucket() as url:
        with zipfile.ZipFile(archive) as file:
            names = [n for n in file.namelist() if n.endswith(".jpg")]
            file.extractall(folder, names[:: given.every])
        print(f"put into {url} in {upload(Path(folder)):.0f} s", flush=True)
        test = shoal.data.open_files(f"{folder}/test/")
        rows = test.take(slice(0, len(test)))
        found = [
            train(place, strategy, given.epochs, rows)
            for strategy in given.strategies
            for place in (folder, f"s3://{BUCKET}", folder)
        ]
        urllib.request.urlopen(url).close()  # the store still answers
    draw([run for number, run in enumerate(found) if number % 3 < 2], given.picture)
    for number, remote in enumerate(found[1::3]):
        before, after = (found[3 * number + at]["warm_per_s"] for at in (0, 2))
        share = 1 - remote["warm_per_s"] / ((before + after) / 2)
        print(f"{remote['strategy']}: the bucket costs {share:.1%} of samples/s")


if __name__ == "__main__":
    main()
