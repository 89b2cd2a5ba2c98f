"""Finds installed versions that conflict. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

State: TypeAlias = Literal["good", "absent", "wrong"]
OLDEST_JAVA_OF_SPARK = {3: 8, 4: 17}
"""Java that Spark needs, by Spark's major version."""
TOO_NEW_FOR_SPARK = 23
"""First Java version without a method that Spark's Hadoop calls."""
EXTRA = re.compile(r"""extra == ['"]([^'"]+)""")


@final
@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report.

    Args:
        name: Name of the check.
        found: Present state.
        state: "absent" is not a fault: it may not be needed.
        fix: Remedy, if there is one.
    """

    name: str
    found: str
    state: State = "good"
    fix: str = ""


def clashes(packages: Mapping[str, str], java: str = "") -> list[Finding]:
    """Returns installed packages that do not work together.

    Args:
        packages: Name -> version.
        java: First line of `java -version`.

    Example:
        >>> [one.name for one in clashes({"jax": "0.6.2", "jaxlib": "0.5.0"})]
        ['jax and jaxlib']
    """
    have = {name: _numbers(text) for name, text in packages.items()}
    found: list[Finding] = []

    def clash(one: str, other: str, why: str, fix: str) -> None:
        text = " ".join(f"{n} {packages.get(n, '')}".strip() for n in (one, other))
        name = f"{one} and {other}"
        found.append(Finding(name=name, found=f"{text}: {why}", state="wrong", fix=fix))

    tensorflow = "tensorflow" if "tensorflow" in have else "tensorflow-cpu"
    if {"jax", "jaxlib"} <= have.keys() and have["jax"][:2] != have["jaxlib"][:2]:
        clash("jax", "jaxlib", "of different releases", "pip install --upgrade jax")
    is_old = tensorflow in have and have[tensorflow] < (2, 18)
    if is_old and have.get("numpy", (0,)) >= (2,):
        clash(
            tensorflow, "numpy", "it was built for NumPy 1",
            f"pip install '{tensorflow}>=2.18'",
        )  # fmt: skip
    if {"tensorflow", "tensorflow-cpu"} <= have.keys():
        clash(
            "tensorflow", "tensorflow-cpu", "one has overwritten files of the other",
            "pip uninstall both, then install one",
        )  # fmt: skip
    if have.get("pyspark", (9,)) < (4, 1) and have.get("pandas", (0,)) >= (3,):
        clash(
            "pyspark", "pandas", "it does not read frames of pandas 3",
            "pip install 'pandas<3'",
        )  # fmt: skip
    spark, number = have.get("pyspark", ()), _java_number(java)
    oldest = OLDEST_JAVA_OF_SPARK.get(spark[0], 0) if spark else 0
    if number and number < oldest:
        clash("pyspark", "java", f"it needs Java {oldest}", f"install Java {oldest}")
    if spark and spark < (4, 1) and number >= TOO_NEW_FOR_SPARK:
        clash("pyspark", "java", "Spark does not start on it", "install Java 17")
    return found


def misfits(
    packages: Mapping[str, str], wanted: Mapping[str, Sequence[str]]
) -> list[Finding]:
    """Returns packages whose version contradicts a requirement.

    Args:
        packages: Name -> version.
        wanted: Package -> requirements, from its metadata. If there are several for one
            package, for extras, one that fits is enough.

    Example:
        >>> wanted = {"shoal": ["ray[default]<3,>=2.50; extra=='ray'"]}
        >>> [one] = misfits({"ray": "2.40.0"}, wanted)
        >>> one.found, one.fix
        ('ray 2.40.0: shoal needs <3,>=2.50', "pip install 'ray[default]<3,>=2.50'")
    """
    found: list[Finding] = []
    for wanting, lines in wanted.items():
        asked: dict[str, list[Requirement]] = {}
        for one in map(Requirement, lines):
            if _applies(one):
                asked.setdefault(canonicalize_name(one.name), []).append(one)
        for name in sorted(packages.keys() & asked.keys()):
            ways, own = asked[name], packages[name]
            if any(way.specifier.contains(own, prereleases=True) for way in ways):
                continue
            ways[0].marker = None
            text = f"{name} {own}: {wanting} needs {ways[0].specifier}"
            fix, both = f"pip install '{ways[0]}'", f"{wanting} and {name}"
            found.append(Finding(name=both, found=text, state="wrong", fix=fix))
    return found


def _applies(one: Requirement) -> bool:
    """Whether a requirement applies to such a machine, with any extra."""
    if one.marker is None:
        return True
    extras = EXTRA.findall(str(one.marker)) or [""]
    return any(one.marker.evaluate({"extra": extra}) for extra in extras)


def _numbers(text: str) -> tuple[int, ...]:
    """Returns a version as numbers, up to the first other part."""
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def _java_number(line: str) -> int:
    """Returns the major version in a line of `java -version`, 0 for none.

    Example:
        >>> _java_number('openjdk version "17.0.9"'), _java_number('"1.8.0_392"')
        (17, 8)
    """
    match = re.search(r'"(?:1\.)?(\d+)', line)
    return int(match[1]) if match else 0
