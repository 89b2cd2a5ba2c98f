"""Where compiled programs are kept."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shoal.backends import compile_cache
from shoal.backends.compile_cache import cache_variables, turn


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
def test_without_folder_or_support_nothing_is_cached(
    backend: str, folder: str | None
) -> None:
    assert cache_variables(backend, folder, {}) == {}


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    found = cache_variables("jax", str(tmp_path), {})
    Path(found["JAX_COMPILATION_CACHE_DIR"]).chmod(0o770)
    assert cache_variables("jax", str(tmp_path), {}) == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_is_not_used(tmp_path: Path) -> None:
    found = cache_variables("jax", str(tmp_path), {})
    Path(found["JAX_COMPILATION_CACHE_DIR"]).chmod(0o500)
    assert cache_variables("jax", str(tmp_path), {}) == {}


def test_a_truncated_program_does_not_break_the_cache(tmp_path: Path) -> None:
    """JAX's own cache, in which a process was killed, or the disk was full."""
    lru_cache: Any = pytest.importorskip("jax._src.lru_cache")
    place = tmp_path / f"{compile_cache.OURS}1"
    cache = lru_cache.LRUCache(str(place), max_size=1 << 20)
    cache.put("whole", b"a program")
    (place / "half-cache").write_bytes(b"a pro")
    with pytest.raises(FileNotFoundError):
        cache.put("next", b"a program")
    with turn(str(place), "p"):
        pass
    cache.put("next", b"a program")
    found = [cache.get(name) for name in ("whole", "half", "next")]
    assert found == [b"a program", None, b"a program"]


def test_the_cache_of_a_user_is_not_cleaned(tmp_path: Path) -> None:
    program = tmp_path / "mine-cache"  # JAX notes no times where it has no limit
    program.write_bytes(b"a program")
    with turn(str(tmp_path), "p"):
        pass
    assert program.exists()


def test_processes_compile_the_same_program_one_at_a_time(tmp_path: Path) -> None:
    inside, most = 0, 0
    tally = threading.Lock()
    start = threading.Barrier(4)

    def compile_it() -> None:
        nonlocal inside, most
        start.wait()
        with turn(str(tmp_path), "the same"):
            with tally:
                inside += 1
                most = max(most, inside)
            with turn(str(tmp_path), "another"):  # no turn waits for another program
                pass
            with tally:
                inside -= 1

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: compile_it(), range(4)))
    assert most == 1
    assert list((tmp_path / compile_cache.TURNS).iterdir()) == []


HOLD = """
import sys, time
from shoal.backends.compile_cache import turn
with turn(sys.argv[1], "program"):
    print("mine", flush=True)
    time.sleep(600)
"""


def test_a_process_that_dies_releases_its_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mine\n"
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(_take, str(tmp_path))
            assert not waiting.done()
            holder.kill()
            assert waiting.result() == "mine"


def test_a_lock_that_is_held_too_long_delays_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_cache, "LONGEST_TURN_S", 0.01)
    with turn(str(tmp_path), "program"), ThreadPoolExecutor(1) as thread:
        assert thread.submit(_take, str(tmp_path)).result() == "mine"


@pytest.mark.parametrize("folder", [None, "/proc/none", ""])
def test_without_a_folder_no_process_waits(folder: str | None) -> None:
    with turn(folder, "program"), ThreadPoolExecutor(1) as thread:
        assert thread.submit(_take, folder).result() == "mine"


def test_an_error_of_the_compiler_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="of the compiler"), turn(str(tmp_path), "p"):
        raise OSError("of the compiler")
    assert _take(str(tmp_path)) == "mine"


def _take(folder: str | None) -> str:
    with turn(folder, "program"):
        return "mine"
