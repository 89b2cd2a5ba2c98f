"""Groups of JAX that cannot be had; those that can are in `test_native.py`.

XLA keeps the connections of a group as long as its process lives, so groups of several
are formed in processes that end.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from shoal.backends.group import GroupBroken
from shoal.backends.jax import group as jax_group


def test_masses_are_counted_beyond_float32() -> None:
    client: Any = jax.local_devices(backend="cpu")[0].client
    group = jax_group.JaxGroup(client, 0, 1)
    vector = np.arange(5, dtype="f4")
    assert group.add(vector, 2.0**24 + 1) == 2.0**24 + 1
    np.testing.assert_array_equal(vector, np.arange(5))
    group.close()


def test_who_waits_for_nobody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax_group, "LIMIT_S", 0.05)
    with pytest.raises(GroupBroken, match=r"did not (come|answer) in 0\.05 s"):
        jax_group.open_group(tmp_path / "group", 1, 2, "gloo")


def test_a_jaxlib_that_is_made_otherwise_forms_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another(name: str) -> object:
        assert name == "jax._src.lib"
        return SimpleNamespace()

    monkeypatch.setattr(jax_group, "import_module", another)
    with pytest.raises(GroupBroken, match="AttributeError"):
        jax_group.open_group(tmp_path / "group", 0, 2, "gloo")
