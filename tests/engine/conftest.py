"""Fixtures for clusters in one process."""

from __future__ import annotations

import pytest

from shoal.engine.coordination import timeouts
from shoal.engine.server import replication

PATIENT_S = 120.0


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread counts as hung because the machine is busy, or its disk.

    For tests that count losses and start servers and workers as threads of this
    process. Limits of processes stay as they are.
    """
    monkeypatch.setattr(timeouts, "FLOOR_S", PATIENT_S)
    monkeypatch.setattr(replication, "FLOOR_S", PATIENT_S)
