"""`tf.data.Dataset`: read in the driver, or by workers as a graph in shards.

This file decides what is known of a pipeline without reading it, and which pipelines
can be sent to another process: those whose graph holds no Python code, no lookup
table and no random operation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from shoal.data.batches import Packing
from shoal.data.chunks import ChunkedSource
from shoal.data.generators import FedSource
from shoal.data.reading import Reading
from shoal.data.shards import Shard, ShardedSource
from shoal.errors import DataError

_BATCHING = {"_BatchDataset", "_ParallelBatchDataset"}
_KEEPING = {
    "CacheDataset",
    "_CacheDataset",
    "_MapDataset",
    "_OptionsDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
}


def tensorflow_source(
    dataset: Any, packing: Packing, reading: Reading
) -> ChunkedSource:
    """Makes a source of a `tf.data.Dataset`, whose elements are batches.

    By default the driver reads it, once, in its own order, and hands batches to the
    workers: everything works that works in Keras, and every sample is counted
    exactly once. With `reading.shards` its graph goes to the workers, and shard i of n
    is every n-th batch: the driver is free then, but every shard runs the whole
    pipeline. A `dataset_fn(shard)` that divides a list of files is better than both.

    Args:
        dataset: Batched, as for Keras.
        packing: How batches are made into chunks.
        reading: Options of `fit`.

    Raises:
        DataError: It is empty, or cannot be read in shards.

    Example:
        >>> import tensorflow as tf
        >>> dataset = tf.data.Dataset.range(5).batch(2)
        >>> packing = Packing(kind="tf.data.Dataset", floatx="float32")
        >>> source = tensorflow_source(dataset, packing, Reading())
        >>> source.chunk_rows, source.take(slice(1, 2))
        ((2, 2, 1), array([1]))
    """
    if reading.shards is None:
        return FedSource.of_passes(
            lambda: iter(dataset),
            packing=packing,
            steps_per_epoch=reading.steps_per_epoch,
            epochs=reading.epochs,
            expect=lambda rows: _rows_of_batches(dataset, rows, packing, reading),
        )
    rows: Sequence[int] | None = None
    if reading.steps_per_epoch is None:
        first = next((packing.rows_of(b, "batch 0") for b in dataset.take(1)), 0)
        known = _rows_of_batches(dataset, first, packing, reading)
        count = reading.shards
        rows = known and [sum(known[index::count]) for index in range(count)]
    return ShardedSource(
        GraphShards.of(dataset, packing),
        shards=reading.shards,
        packing=packing,
        rows=rows,
        steps_per_epoch=reading.steps_per_epoch,
        seed=reading.seed,
    )


def _rows_of_batches(
    dataset: Any, rows: int, packing: Packing, reading: Reading
) -> list[int] | None:
    """Returns the rows of every batch, if the pipeline knows; `rows` are the first's.

    Raises:
        DataError: The pipeline has no end.
    """
    import tensorflow as tf

    batches = int(dataset.cardinality())
    if batches == tf.data.INFINITE_CARDINALITY:
        if reading.steps_per_epoch is not None:
            return None
        raise DataError(
            f"The {packing.kind} has no end ({packing.where}). Expected the number "
            f"of batches in a pass. Pass {packing.steps_name}, or leave out .repeat()."
        )
    while type(dataset).__name__ in _KEEPING:
        dataset = dataset._input_dataset
    if batches < 1 or type(dataset).__name__ not in _BATCHING:
        return None
    samples = int(dataset._input_dataset.cardinality())
    last = samples - rows * (batches - 1)
    if samples < 1 or last < 1:
        return None
    return [rows] * (batches - 1) + [min(last, rows)]


@final
@dataclass(frozen=True, kw_only=True)
class GraphShards:
    """Makes a shard of a pipeline, in any process, from its graph.

    Args:
        graph: The pipeline, serialized by TensorFlow.
        spec: Type of its elements.
    """

    graph: bytes
    spec: Any

    @classmethod
    def of(cls, dataset: Any, packing: Packing) -> GraphShards:
        """Serializes the graph of a pipeline.

        Raises:
            DataError: A part of it cannot be sent to another process, or would
                differ there.
        """
        import tensorflow as tf

        raw: Any = tf.raw_ops
        fail_on_state = 2
        try:
            graph: bytes = raw.DatasetToGraphV2(
                input_dataset=dataset._variant_tensor,
                external_state_policy=fail_on_state,
                strip_device_assignment=True,
            ).numpy()
        except tf.errors.FailedPreconditionError as error:
            found = re.search(r"(\w+) is stateful", str(error))
            what = found[1] if found else "pipeline"
            raise _not_in_shards(packing, f"its {what} has a state") from error
        definition: Any = tf.compat.v1.GraphDef.FromString(graph)
        for node in _nodes(definition):
            if "Shuffle" in node.op or node.op.startswith("Random"):
                raise _not_in_shards(packing, f"its {node.op} differs in each process")
            if node.attr["deterministic"].s == b"false":
                raise _not_in_shards(packing, f"its {node.op} is not deterministic")
        if dataset.options().deterministic is False:
            raise _not_in_shards(packing, "its options are not deterministic")
        return cls(graph=graph, spec=dataset.element_spec)

    def __call__(self, shard: Shard) -> Any:
        """Makes the batches of a shard: every `shard.count`-th one."""
        import tensorflow as tf

        raw: Any = tf.raw_ops
        variant = raw.DatasetFromGraph(graph_def=self.graph)
        dataset: Any = tf.data.experimental.from_variant(variant, self.spec)
        return dataset.shard(shard.count, shard.index)


def _nodes(definition: Any) -> Iterator[Any]:
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def _not_in_shards(packing: Packing, what: str) -> DataError:
    return DataError(
        f"The {packing.kind} cannot be cut into shards ({packing.where}): {what}. "
        "Expected a pipeline that is the same in every process. Leave out shards, "
        "and the driver reads it; or pass a function dataset_fn(shard) that makes it "
        "and calls .shard(shard.count, shard.index) before .shuffle."
    )
