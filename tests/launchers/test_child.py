"""Imports of a process before it gets its spec."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PRELOAD = """
import sys
sys.path.insert(0, {folder!r})
from shoal.launchers.child import _preload
_preload(("user",), ("absent",), ("heavy", "heavy.part", "single"))
import user
print(sorted(set(sys.modules) & set("absent user heavy heavy.part single".split())))
print(user.has_absent, user.said)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Modules that tell when they are executed."""
    (tmp_path / "absent.py").write_text("")
    (tmp_path / "heavy").mkdir()
    said = "import builtins; builtins.said.append(__name__)\n"
    (tmp_path / "heavy" / "__init__.py").write_text(f"{said}from heavy.part import x\n")
    (tmp_path / "heavy" / "part.py").write_text(f"{said}x = 7\n")
    (tmp_path / "single.py").write_text(f"{said}y = 8\n")
    (tmp_path / "user.py").write_text(
        "import builtins; said = builtins.said = []\n"
        "from heavy import part\nimport single\n"
        "try:\n    import absent\n    has_absent = True\n"
        "except ImportError:\n    has_absent = False\n"
    )
    return tmp_path


def run(folder: Path, then: str = "") -> list[str]:
    script = PRELOAD.format(folder=str(folder)) + then
    command = [sys.executable, "-c", script]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    return out.stdout.splitlines()


def test_modules_that_wait_are_not_executed_and_others_count_as_absent(
    folder: Path,
) -> None:
    assert run(folder) == ["['heavy', 'heavy.part', 'single', 'user']", "False []"]


@pytest.mark.parametrize(
    ("use", "executed"),
    [
        ("user.part.x == 7", ["heavy.part"]),
        ("__import__('heavy').x == 7", ["heavy", "heavy.part"]),
        ("user.single.y == 8", ["single"]),
        ("__import__('absent').__name__ == 'absent'", []),
    ],
)
def test_they_are_executed_when_something_of_them_is_used(
    folder: Path, use: str, executed: list[str]
) -> None:
    assert run(folder, f"print({use}, user.said)\n")[-1] == f"True {executed}"


def test_garbage_is_collected_again_afterwards(folder: Path) -> None:
    assert run(folder, "import gc; print(gc.isenabled())")[-1] == "True"
