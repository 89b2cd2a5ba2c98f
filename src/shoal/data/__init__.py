"""Sources of samples, and the order in which they come.

`fit` makes a source of its data. To say more than its arguments do, make
one and pass it as x: `open_files` for files of any kind, `ShardedSource` for a stream
that workers open in shards. `adapt` scales features over data of any size.
"""

from shoal.data.chunks import ChunkedSource
from shoal.data.files import open_files
from shoal.data.order import Order
from shoal.data.scaling import adapt
from shoal.data.shards import Shard, ShardedSource
from shoal.data.sources import ArraySource, Source
from shoal.data.training import training_data

__all__ = [
    "ArraySource",
    "ChunkedSource",
    "Order",
    "Shard",
    "ShardedSource",
    "Source",
    "adapt",
    "open_files",
    "training_data",
]
