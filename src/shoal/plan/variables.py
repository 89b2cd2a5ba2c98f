"""Reads the SHOAL_* variables, in one place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from shoal.errors import ConfigError
from shoal.facts import DEFAULT_ROOT
from shoal.plan.request import Workers

NAMES = (
    "runs", "workers", "cluster", "data", "verbose", "cache", "clusters", "yarn",
    "generator_gb",
)  # fmt: skip
LOCAL = "local"
DEFAULT_CACHE = "~/.cache/shoal"
DEFAULT_CLUSTERS = "~/.shoal/clusters"


@final
@dataclass(frozen=True, kw_only=True)
class EnvironmentVariables:
    """Values of the SHOAL_* variables; an argument always overrides them.

    Args:
        runs: SHOAL_RUNS, the folder or URL of the runs; default ./shoal-runs.
        workers: SHOAL_WORKERS: a number, "min-max" or "auto"; None when not set.
        cluster: SHOAL_CLUSTER, the default of `cluster` in `fit` and `plan`; "local"
            when not set. Jobs on a cluster have "ray" there.
        data: SHOAL_DATA, the folder of data sets for examples and benchmarks.
        verbose: SHOAL_VERBOSE: 0, 1, 2 or "auto"; None when not set.
        cache: SHOAL_CACHE, the folder where workers keep compiled programs; default
            ~/.cache/shoal, None for "off".
        yarn: SHOAL_YARN, the address of a ResourceManager, for `workers="yarn"`.
        clusters: SHOAL_CLUSTERS, the folder of the files that describe clusters;
            default ~/.shoal/clusters.
        generator_gb: SHOAL_GENERATOR_GB, the gigabytes that a generator without a
            number of steps may give; None when not set.
    """

    runs: str = DEFAULT_ROOT
    workers: Workers | None = None
    cluster: str = LOCAL
    data: str | None = None
    verbose: int | str | None = None
    cache: str | None = DEFAULT_CACHE
    yarn: str | None = None
    clusters: str = DEFAULT_CLUSTERS
    generator_gb: float | None = None


def environment(variables: Mapping[str, str] | None = None) -> EnvironmentVariables:
    """Reads the SHOAL_* variables; no other code does.

    Args:
        variables: Name -> text; default None means those of this process.

    Raises:
        ConfigError: A variable has an invalid value.

    Example:
        >>> environment({"SHOAL_WORKERS": "2-4", "SHOAL_VERBOSE": "0"}).workers
        (2, 4)
    """
    found = os.environ if variables is None else variables
    texts = {
        name: text
        for name in NAMES
        if (text := found.get(f"SHOAL_{name.upper()}", "").strip())
    }
    workers, verbose = texts.get("workers"), texts.get("verbose")
    cache = texts.get("cache", DEFAULT_CACHE)
    return EnvironmentVariables(
        runs=texts.get("runs", DEFAULT_ROOT),
        workers=None if workers is None else read_workers("SHOAL_WORKERS", workers),
        cluster=texts.get("cluster", LOCAL),
        data=texts.get("data"),
        verbose=None if verbose is None else _verbose_from(verbose),
        cache=None if cache == "off" else cache,
        yarn=texts.get("yarn"),
        clusters=texts.get("clusters", DEFAULT_CLUSTERS),
        generator_gb=_gigabytes_from(texts.get("generator_gb")),
    )


def read_workers(name: str, text: str) -> Workers:
    """Reads a number of workers.

    Args:
        name: Name of the variable or option.
        text: A number, min-max or auto.

    Raises:
        ConfigError: The text is invalid.

    Example:
        >>> read_workers("--workers", "2-4")
        (2, 4)
    """
    parts = [part.strip() for part in text.split("-")]
    if text == "auto":
        return text
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise ConfigError(
            f"{name}={text!r} cannot be read. "
            "Expected a number, min-max or auto. Correct it or leave it out."
        )
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def _verbose_from(text: str) -> int | str:
    if text not in ("auto", "0", "1", "2"):
        raise ConfigError(
            f"SHOAL_VERBOSE={text!r} cannot be read. "
            "Expected 0, 1, 2 or auto. Correct or unset the variable."
        )
    return text if text == "auto" else int(text)


def _gigabytes_from(text: str | None) -> float | None:
    if text is None:
        return None
    with suppress(ValueError):
        if (found := float(text)) > 0:
            return found
    raise ConfigError(
        f"SHOAL_GENERATOR_GB={text!r} cannot be read. "
        "Expected a number above 0, or inf. Correct or unset the variable."
    )
