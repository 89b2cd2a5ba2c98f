"""The file of a cluster: the common part of all such files."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from shoal.clusters.yaml_text import MOST_CHARACTERS, Lines, read_yaml
from shoal.errors import ConfigError

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$"


class SpecPart(BaseModel):
    """Base of all parts of such a file: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ClusterSpec(SpecPart):
    """Content of a file; each provider has a class of its own.

    Args:
        name: Name of the cluster; default "": that of the file.
    """

    name: str = Field("", pattern=rf"{NAME}|^$")

    @classmethod
    def expected(cls) -> str:
        """Returns which fields the file may have, for messages."""
        return f"the fields {', '.join(cls.model_fields)}"


Spec = TypeVar("Spec", bound=ClusterSpec)


def read_fields(path: Path) -> tuple[dict[str, Any], Lines]:
    """Reads a file of YAML, or the same as JSON; returns its fields and their lines.

    Raises:
        ConfigError: The file does not exist, or has no fields.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the file of hosts cannot be read: {error}. Expected YAML, in the least "
            "`hosts: [10.0.0.1, 10.0.0.2]`, the head first. Name such a file."
        ) from error
    return parse_fields(text, str(path), is_json=path.suffix == ".json")


def parse_fields(
    text: str, where: str, *, is_json: bool = False
) -> tuple[dict[str, Any], Lines]:
    """Reads the text of such a file.

    Args:
        text: YAML, or JSON.
        where: Name of the file, for messages.
        is_json: Whether it is JSON.

    Raises:
        ConfigError: It is neither, or has no fields.
    """
    value, lines = _from_json(text, where) if is_json else _from_yaml(text, where)
    if not isinstance(value, dict):
        raise wrong(where, "it holds no fields", "fields, such as `hosts`")
    return cast("dict[str, Any]", value), lines


def validated(
    kind: type[Spec], fields: dict[str, Any], where: str, lines: Lines
) -> Spec:
    """Returns the fields of a file as a provider's spec.

    Raises:
        ConfigError: A field is invalid; with the line.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        said = [
            f"{_line_of(one['loc'], lines)}{_field(one['loc'])}: "
            f"{one['msg'].removeprefix('Value error, ')}{_nearest(kind, one)}"
            for one in error.errors()
        ]
        raise wrong(where, "; ".join(said), kind.expected()) from error


def _nearest(kind: type[BaseModel], error: ErrorDetails) -> str:
    """Returns the nearest known field, for an unknown one."""
    if error["type"] != "extra_forbidden":
        return ""
    *places, name = error["loc"]
    model: object = kind
    for place in places:
        if isinstance(model, type) and issubclass(model, BaseModel):
            field = model.model_fields.get(str(place))
            model = None if field is None else field.annotation
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return ""
    near = difflib.get_close_matches(str(name), model.model_fields, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def named(spec: Spec, path: Path) -> Spec:
    """Returns a spec with a name: its own, else that of its file.

    Raises:
        ConfigError: The file's name is not a valid cluster name.
    """
    name = spec.name or path.stem
    if not re.match(NAME, name):
        raise ConfigError(
            f"a cluster cannot be called {name!r}, as the file is. Expected at most 32 "
            "letters, digits, - and _. Give it a `name`."
        )
    return spec.model_copy(update={"name": name})


def wrong(where: str, what: str, expected: str) -> ConfigError:
    """Returns the error about such a file."""
    return ConfigError(
        f"{where}: {what}. Expected {expected}. Correct the file; nothing was started."
    )


def _from_json(text: str, where: str) -> tuple[Any, Lines]:
    try:
        return json.loads(text), {}
    except (ValueError, RecursionError) as error:
        raise wrong(where, f"it is no JSON: {error}", "an object of JSON") from error


def _from_yaml(text: str, where: str) -> tuple[Any, Lines]:
    try:
        return read_yaml(text)
    except ImportError as error:
        raise ConfigError(
            f"{where} is YAML, and PyYAML is not installed. Expected it, or a file of "
            "JSON. Run: pip install 'shoal[cluster]'."
        ) from error
    except ValueError as error:
        raise wrong(where, str(error), "YAML with fields") from error


def _line_of(place: Sequence[Any], lines: Lines) -> str:
    """Returns the line of a field, or of the part that lacks it."""
    for end in range(len(place), 0, -1):
        if tuple(place[:end]) in lines:
            return f"line {lines[tuple(place[:end])]}, "
    return ""


def _field(place: Sequence[Any]) -> str:
    """Returns a field in the user's notation.

    Example:
        >>> _field(("hosts", 1, "port"))
        'hosts[1].port'
    """
    text = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place)
    return text.lstrip(".") or "the file"
