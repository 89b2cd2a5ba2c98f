"""Metrics of a task: Arrow batches in, sums of metric states out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

import numpy as np
import pyarrow as pa

from shoal.data.files.selection import Selection
from shoal.spark.scoring_task import rows_of
from shoal.spark.sent_model import SentModel


@final
@dataclass(frozen=True, kw_only=True)
class MetricScorer:
    """Function of a task that evaluates, for `DataFrame.mapInArrow`.

    Args:
        model: The compiled model.
        selection: Roles of the columns.
        batch_size: Rows of a step.
        sample_rows: Rows that come back, for their shapes.
    """

    model: SentModel
    selection: Selection
    batch_size: int
    sample_rows: int

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields the states of a partition and its first rows; nothing for no rows."""
        states: Any = 0
        first, sample = 0, b""
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = rows_of(batch.to_struct_array(), self.selection, first)
            evaluate = import_module("shoal.training.score_chunks").evaluate_chunk
            states = states + evaluate(self.model.open(), rows, self.batch_size)
            sample = sample or to_bytes(batch.slice(0, self.sample_rows))
            first += batch.num_rows
        if first:
            yield pa.RecordBatch.from_pydict(
                {
                    "rows": [first],
                    "states": [np.asarray(states, "<f8").tobytes()],
                    "sample": [sample],
                }
            )


def to_bytes(batch: Any) -> bytes:
    """Writes a record batch as a stream of Arrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def from_bytes(blob: bytes) -> Any:
    """Reads what `to_bytes` has written."""
    with pa.ipc.open_stream(blob) as stream:
        return stream.read_next_batch()
