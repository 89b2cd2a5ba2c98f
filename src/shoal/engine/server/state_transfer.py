"""A replica as bytes, from a server to its standby: both know the run's secret.

This is the only pickle on a connection. A standby connects to the server by its
address, and both prove the secret first; a worker, which has another key, neither gets
a pickle nor can send one.
"""

from __future__ import annotations

import pickle
from typing import Any


def pack(frozen: dict[str, Any]) -> bytes:
    """Returns the result of `Replica.freeze` as bytes."""
    return pickle.dumps(frozen)


def unpack(data: bytes | memoryview) -> dict[str, Any]:
    """The inverse of `pack`; only for bytes from the run's own server."""
    return pickle.loads(data)
