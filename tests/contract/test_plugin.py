""" "Add a strategy in 20 minutes", as CONTRIBUTING tells it, tried with a toy one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import ConfigError
from shoal.strategies import get, registry
from shoal.testing import check_strategy

TOY = '''
"""Halved deltas. This file decides a toy."""
from dataclasses import dataclass
from typing import ClassVar

from shoal.strategies import ServerStrategy, adopt_reply


@dataclass(frozen=True, kw_only=True)
class Halving(ServerStrategy):
    """Adds half of every change."""

    name: ClassVar[str] = "halving"
    period: int = 3
    share: float = 0.5

    def push(self, local, anchor, steps):
        return local - anchor

    def apply(self, center, state, message, facts):
        center += self.share * message
        return center

    def pull(self, local, pushed, anchor, reply):
        return adopt_reply(local, pushed, reply)
'''


def install(
    folder: Path,
    name: str,
    lines: str,
    source: str = TOY,
    group: str = "shoal.strategies",
) -> None:
    """Lays a package out in a folder as pip would."""
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder on the import path."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for module in set(sys.modules) - before:
        if module.startswith("shoal_toy"):
            del sys.modules[module]
    importlib.invalidate_caches()


def test_a_plugin_is_found_by_its_name_and_passes_the_laws(site: Path) -> None:
    install(site, "shoal_toy", "halving = shoal_toy:Halving")
    assert "halving" in registry.names()
    assert "shoal_toy" not in sys.modules
    assert registry.source("halving") == "shoal_toy"
    assert get("halving:share=0.25").period == 3
    assert "law09_reaches_the_optimum" in check_strategy("halving")


def test_a_plugin_counts_in_did_you_mean(site: Path) -> None:
    install(site, "shoal_toy", "halving = shoal_toy:Halving")
    with pytest.raises(ConfigError, match="Did you mean 'halving'"):
        get("halfing")


@pytest.mark.parametrize(
    ("lines", "name", "message"),
    [
        ("lost = shoal_toy:Gone", "lost", "cannot be imported: AttributeError"),
        ("gone = shoal_toy_gone:Gone", "gone", "ModuleNotFoundError"),
        ("number = builtins:int", "number", "Expected a subclass of Strategy"),
        ("word = sys:platform", "word", "Expected a subclass of Strategy"),
        ("adag = shoal_toy:Halving", "adag", "claimed by shoal and shoal_toy"),
    ],
)
def test_a_bad_plugin_is_named(site: Path, lines: str, name: str, message: str) -> None:
    install(site, "shoal_toy", lines)
    with pytest.raises(ConfigError, match=message):
        get(name)


def test_two_plugins_of_one_name_are_refused(site: Path) -> None:
    install(site, "shoal_toy", "halving = shoal_toy:Halving")
    install(site, "shoal_toy_two", "halving = shoal_toy_two:Halving")
    with pytest.raises(ConfigError, match="claimed by shoal_toy and shoal_toy_two"):
        get("halving")
