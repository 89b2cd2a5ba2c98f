"""Where compiled programs are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.backends import compile_cache
from shoal.backends.compile_cache import cache_variables


def test_a_folder_for_each_kind_of_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = set()
    for flags in ("avx2", "avx2 avx512f"):
        facts = tmp_path / "cpuinfo"
        facts.write_text(f"processor: 0\nflags: {flags}\ncpu MHz: 3000\n")
        monkeypatch.setattr(compile_cache, "CPU_FACTS", facts)
        found = cache_variables("jax", str(tmp_path), {})
        folders.add(found["JAX_COMPILATION_CACHE_DIR"])
    assert len(folders) == 2
    for folder in folders:
        assert Path(folder).stat().st_mode & 0o777 == 0o700


def test_a_users_own_setting_is_left_alone(tmp_path: Path) -> None:
    own = {"JAX_COMPILATION_CACHE_DIR": "/mine"}
    assert cache_variables("jax", str(tmp_path), own) == {}


@pytest.mark.parametrize(
    ("backend", "folder"), [("torch", "/x"), ("jax", None), ("jax", "/proc/none")]
)
def test_nothing_is_kept(backend: str, folder: str | None) -> None:
    assert cache_variables(backend, folder, {}) == {}
