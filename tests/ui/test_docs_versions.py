"""Versions of the site, as `make docs-version` publishes them, in a real browser.

The Makefile, the configuration of versions and the theme are those of the repository;
the site has two pages, which are built in a second.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.site import ROOT
from tests.ui.test_docs_site import opened, served_files

pytest.importorskip("mike")

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.timeout(300)]
SMALL = """
site_name: Shoal
site_url: https://site.example/
strict: true
theme:
  name: material
  custom_dir: {theme}
  font: false
extra: {{generator: false}}
plugins: {{search: {{}}}}
"""


@pytest.fixture(autouse=True)
def _no_leaks() -> None:
    """As in `test_browser.py`."""


@pytest.fixture(scope="module")
def branch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the branch with the versions 0.1, dev and 0.2, in this order."""
    home = tmp_path_factory.mktemp("versions")
    for name in ("Makefile", "mkdocs-versions.yml", "pyproject.toml"):
        shutil.copy(ROOT / name, home / name)
    (home / "constraints.txt").touch()
    (home / "mkdocs.yml").write_text(SMALL.format(theme=ROOT / "docs" / "theme"))
    (home / "docs").mkdir()
    (home / "docs" / "index.md").write_text("# Home\n\nSee [a page](page.md).\n")
    (home / "docs" / "page.md").write_text("# A page\n\nIts text.\n")
    (home / ".venv").mkdir()
    (home / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (home / ".venv" / ".stamp").touch()
    for words in (
        ["git", "init", "--quiet"],
        ["git", "config", "user.name", "Tests"],
        ["git", "config", "user.email", "tests@site.example"],
        ["git", "commit", "--quiet", "--allow-empty", "-m", "First"],
        *(["make", "docs-version", f"VERSION={v}"] for v in ("0.1", "dev", "0.2")),
        ["git", "worktree", "add", "--quiet", "branch", "gh-pages"],
    ):
        # A machine whose path has no mkdocs, which mike starts.
        done = subprocess.run(
            words, cwd=home, capture_output=True, text=True, check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": str(home)},
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return home / "branch"


@pytest.fixture(scope="module")
def url(branch: Path) -> Iterator[str]:
    with served_files(branch) as address:
        yield address


def test_a_reader_changes_the_version_and_stays_on_the_page(
    browser: Any, url: str
) -> None:
    with opened(browser, url) as page:
        page.goto(url)
        page.wait_for_url(f"{url}latest/")
        shown = page.locator(".md-version__current")
        shown.wait_for()
        assert shown.inner_text() == "0.2"
        assert page.locator(".md-version__link").all_inner_texts() == [
            "dev", "0.2", "0.1",
        ]  # fmt: skip
        page.goto(f"{url}latest/page/")
        shown.hover(force=True)  # the list opens over it
        page.locator(".md-version__link", has_text="0.1").click()
        page.wait_for_url(f"{url}0.1/page/")
        assert shown.inner_text() == "0.1"


@pytest.mark.parametrize(("version", "is_told"), [("latest", False), ("dev", True)])
def test_a_page_tells_that_it_is_not_of_the_latest_version(
    browser: Any, url: str, version: str, is_told: bool
) -> None:
    with opened(browser, url) as page:
        page.goto(f"{url}{version}/page/")
        page.locator(".md-version__current").wait_for()
        link = page.get_by_role("link", name="Go to the latest one")
        if is_told:
            link.click()
            page.wait_for_url(f"{url}latest/")
        else:
            assert not link.is_visible()
