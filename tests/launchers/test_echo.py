"""What a process writes is passed on as it comes, in bounded memory."""

from __future__ import annotations

import time
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest

from shoal.launchers.base import Role
from shoal.launchers.process import ProcessLauncher

pytestmark = pytest.mark.process
LIMIT_S = 120.0


@pytest.mark.parametrize("has_log", [True, False])
def test_a_line_of_any_length_is_passed_on_in_pieces(
    has_log: bool, tmp_path: Path
) -> None:
    launcher = ProcessLauncher()
    log = tmp_path / "log" if has_log else None
    heard: list[tuple[str, int]] = []
    launcher.echo(lambda name, line: heard.append((line[-5:], len(line))))
    with closing(launcher):
        role = Role(name="worker-0", target="builtins:exec", log=log)
        token = launcher.start(role)
        code = "print('first'); print('x' * (16 << 20)); print('last'); exit()"
        launcher.give(token, code, log)
        until, ended = time.monotonic() + LIMIT_S, {}
        tracemalloc.start()
        try:
            while not ended and time.monotonic() < until:
                ended = launcher.poll()
            launcher.poll()
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert list(ended) == [token]
    assert most < 4 << 20
    assert heard[0] == ("first", 5)
    assert heard[-1] == ("last", 4)
    assert sum(size for text, size in heard[1:-1]) == 16 << 20
