"""Foreign JavaScript: it is what it should be, in a wheel, and not under git."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from shoal.ui.packages import AXE, FOLDER, UPLOT, Package, is_there

ROOT = Path(__file__).parents[2]


def test_files_are_what_they_should_be():
    if not FOLDER.is_dir():
        pytest.skip("needs uPlot: python hatch_build.py")
    assert is_there(UPLOT)
    assert {path.name for path in FOLDER.iterdir()} == {
        name for name, _ in UPLOT.files.values()
    }
    assert "MIT License" in (FOLDER / "uplot-LICENSE.txt").read_text()


def test_a_file_that_was_changed_is_noticed(tmp_path: Path):
    one = Package(name="x", version="1", license="MIT", files={"x": ("x.js", "0" * 64)})
    assert not is_there(one, tmp_path)
    (tmp_path / "x.js").write_text("alert(1)")
    assert not is_there(one, tmp_path)


def test_foreign_files_are_not_under_git():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("needs a git checkout")
    names = {Path(line).name for line in listed.stdout.splitlines()}
    for package in (UPLOT, AXE):
        assert not names & {name for name, _ in package.files.values()}


@pytest.mark.slow
def test_a_wheel_has_them(tmp_path: Path):
    if not is_there(UPLOT):
        pytest.skip("needs uPlot: python hatch_build.py")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", tmp_path, ROOT],
        check=True, capture_output=True,
    )  # fmt: skip
    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"shoal/ui/static/packages/{name}" for name, _ in UPLOT.files.values()}
    assert wanted <= names
    assert not any(name.endswith("axe.js") for name in names)
