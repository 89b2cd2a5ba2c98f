"""Names, spellings and misspellings of strategies."""

from __future__ import annotations

import subprocess
import sys

import pytest

import shoal.strategies
from shoal.errors import ConfigError
from shoal.registry import Registry, did_you_mean
from shoal.strategies import ADAG, AEASGD, Strategy, get, parse, registry

BUILTIN = [
    "adag", "aeasgd", "all_reduce", "async_diloco", "averaging", "diloco", "downpour",
    "dynsgd", "eamsgd", "easgd", "ensemble", "local_sgd", "single",
]  # fmt: skip


def test_all_rows_of_the_table_are_there() -> None:
    assert set(BUILTIN) <= set(registry.names())
    assert registry.names() == sorted(registry.names())


@pytest.mark.parametrize("name", BUILTIN)
def test_module_name_class_name_and_string_are_one(name: str) -> None:
    found = registry.load(name)
    assert found.name == name
    assert found.__module__ == f"shoal.strategies.{name}"
    assert getattr(shoal.strategies, found.__name__) is found
    assert registry.source(name) == "shoal"


def test_an_unknown_name_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        get("eagsd")
    first, second = str(caught.value).splitlines()
    assert first == "unknown strategy 'eagsd'. Did you mean 'easgd'?"
    assert second.startswith("  Known: adag, aeasgd, all_reduce,")


def test_a_name_like_nothing_gets_no_hint() -> None:
    assert did_you_mean("strategy", "xyz", ["adag"]) == (
        "unknown strategy 'xyz'.\n  Known: adag."
    )
    assert did_you_mean("cluster", "xyz", []).endswith("Known: none.")


def test_the_source_of_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ConfigError, match="unknown strategy 'nobody'"):
        registry.source("nobody")


def test_listing_imports_nothing() -> None:
    lazy = Registry(
        kind="thing", group="shoal.none", builtin={"gone": "no.such:Thing"}, base=object
    )
    assert lazy.names() == ["gone"]
    with pytest.raises(ModuleNotFoundError):
        lazy.load("gone")


def test_strategies_import_no_framework() -> None:
    code = (
        "import sys, shoal.strategies; "
        "print({'keras', 'jax', 'tensorflow', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("adag", ("adag", {})),
        (" adag : period = 3 ", ("adag", {"period": 3})),
        (
            "a:x=1.5,y=true,z=None,w=-2",
            ("a", {"x": 1.5, "y": True, "z": None, "w": -2}),
        ),
        ("a:x=1e-3,y=word,z=False", ("a", {"x": 0.001, "y": "word", "z": False})),
    ],
)
def test_parse(text: str, expected: tuple[str, dict[str, object]]) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize("text", ["a:", "a:x", "a:=1", "a:x=", "a:x=1,", "a:x=1,x=2"])
def test_parse_refuses_text_without_assignments(text: str) -> None:
    with pytest.raises(ConfigError, match="Expected parameter=value"):
        parse(text)


@pytest.mark.parametrize("form", ["aeasgd:beta=0.5", AEASGD, AEASGD(beta=0.5)])
def test_get_takes_names_classes_and_objects(form: str | type[AEASGD] | AEASGD) -> None:
    assert get(form, beta=0.5, period=7) == AEASGD(beta=0.5, period=7)


def test_get_leaves_an_object_as_it_is() -> None:
    assert get(ADAG(period=3)) == ADAG(period=3)


@pytest.mark.parametrize("form", ["adag", ADAG, ADAG()])
def test_get_names_an_unknown_parameter(form: str | type[Strategy] | Strategy) -> None:
    with pytest.raises(
        ConfigError, match=r"unknown parameter of adag 'perod'\. Did .*"
    ):
        get(form, perod=3)


def test_get_refuses_objects_that_are_no_strategy() -> None:
    with pytest.raises(ConfigError, match="strategy=3 is an int"):
        get(3)  # pyright: ignore[reportArgumentType]
