"""Trains on Parquet files larger than what a worker may hold, and kills one worker.

Run: `python -m benchmarks.larger_than_memory [--gb 5] [--folder FOLDER]`. It makes the
files on the spot, prints the memory that workers took beyond what they take with little
data, and whether every sample was counted once.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import shoal
from shoal.data.chunks import MEMORY_BYTES
from shoal.testing import faults

FEATURES, GROUP_ROWS, FILE_GROUPS = 30, 1 << 18, 8
ROW_BYTES = 4 * (FEATURES + 1)
BATCH_SIZE = 1024


def write_files(folder: Path, size_bytes: float) -> int:
    """Writes Parquet files of this total size; returns their rows."""
    random = np.random.default_rng(0)
    direction = random.standard_normal(FEATURES)
    rows, number = 0, 0
    while rows * ROW_BYTES < size_bytes:
        left = int(size_bytes / ROW_BYTES) + 1 - rows
        count = min(GROUP_ROWS * FILE_GROUPS, left)
        x = random.standard_normal((count, FEATURES), np.float32)
        columns = {f"x{i}": x[:, i] for i in range(FEATURES)}
        columns["y"] = (x @ direction > 0).astype(np.int32)
        pq.write_table(
            pa.table(columns), folder / f"part-{number:03}.parquet",
            row_group_size=GROUP_ROWS, compression="none", use_dictionary=False,
        )  # fmt: skip
        rows, number = rows + count, number + 1
    return rows


@contextmanager
def peaks() -> Generator[dict[int, int]]:
    """Measures the resident memory of child processes; yields pid -> peak."""
    found: dict[int, int] = {}
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.1):
            for child in psutil.Process().children(recursive=True):
                try:
                    used = child.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
                found[child.pid] = max(found.get(child.pid, 0), used)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def train(folder: Path, runs: Path, *, kill_at: int = 0) -> tuple[Any, float, int]:
    """Trains one epoch; returns the summary, seconds, and the highest peak."""
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(32, "relu"),
            keras.layers.Dense(2, "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    fault = faults.kill(rank=1, step=kill_at) if kill_at else nullcontext()
    began = time.perf_counter()
    with peaks() as found, fault:
        history = shoal.fit(
            model, folder, features=[f"x{i}" for i in range(FEATURES)], label="y",
            strategy="aeasgd", workers=2, batch_size=BATCH_SIZE, verbose=0,
            run=str(runs),
        )  # fmt: skip
    took_s = time.perf_counter() - began
    print(f"accuracy {history.history['accuracy'][-1]:.3f}")
    return history.run.summary(), took_s, max(found.values())


def main() -> None:
    """Makes the data, trains on a part and on all of it, prints and removes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=5.0)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="shoal-large-", dir=given.folder))
    try:
        little, much = place / "little", place / "much"
        little.mkdir()
        much.mkdir()
        write_files(little, 4e6)
        began = time.perf_counter()
        rows = write_files(much, given.gb * 1e9)
        print(f"{rows:,} rows written in {time.perf_counter() - began:.0f} s")
        _, _, base = train(little, place / "runs")
        kill_at = rows // BATCH_SIZE // 4  # half of the steps of one worker
        summary, took_s, peak = train(much, place / "runs", kill_at=kill_at)
        figures = {
            "gb": given.gb,
            "rows": rows,
            "committed": summary.samples_committed,
            "expected": summary.samples_expected,
            "workers_lost": summary.workers_lost,
            "samples_per_s": round(rows / took_s),
            "peak_mb": round(peak / 2**20),
            "peak_with_little_data_mb": round(base / 2**20),
            "data_mb": round((peak - base) / 2**20),
            "bound_mb": MEMORY_BYTES >> 20,
        }
        print(json.dumps(figures))
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
