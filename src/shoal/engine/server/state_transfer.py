"""A machine as bytes, from a server to its standby: both hold the run's secret itself.

The only pickle that crosses the wire. A standby calls the server by its address, and
both prove the secret first; a worker, who has a key of its own, neither gets one nor
can send one.
"""

from __future__ import annotations

import pickle
from typing import Any


def pack(frozen: dict[str, Any]) -> bytes:
    """What `Machine.freeze` gave, as bytes."""
    return pickle.dumps(frozen)


def unpack(data: bytes | memoryview) -> dict[str, Any]:
    """The inverse of `pack`; never give it what anybody else sent."""
    return pickle.loads(data)
