"""What a strategy says of itself: its kind, parameters, their meaning, its paper."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, dataclass, fields
from typing import Any, final

from shoal.strategies.base import Strategy


def describe_strategy(strategy: type[Strategy]) -> dict[str, Any]:
    """Returns the table row of a strategy.

    Example:
        >>> from shoal.strategies import AEASGD
        >>> found = describe_strategy(AEASGD)
        >>> found["kind"], found["period"], found["paper"]
        ('asynchronous', 10, 'Zhang, Choromanska, LeCun (2015), arXiv:1412.6651')
    """
    defaults = {field.name: field.default for field in fields(strategy)}
    return {
        "name": strategy.name,
        "kind": "asynchronous" if strategy.is_asynchronous else "rounds",
        "period": defaults.pop("period"),
        "parameters": defaults,
        "paper": paper_of(strategy.__doc__ or ""),
    }


def paper_of(docstring: str) -> str:
    r"""Returns the first reference of a docstring, up to its identifier.

    Example:
        >>> paper_of("Title.\n\nReferences:\n    Stich (2018), arXiv:1805.09767, x.")
        'Stich (2018), arXiv:1805.09767'
    """
    found = re.search(r"References:\n(.+)", inspect.cleandoc(docstring), re.DOTALL)
    if not found:
        return ""
    text = " ".join(found[1].split())
    short = re.match(r".*?(arXiv:|doi:)[\w./]*\w", text)
    return short[0] if short else text.rstrip(".")


@final
@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of a strategy, as a form asks for it.

    Args:
        name: Its name.
        kind: "whole", "number", "choice" of true and false, or "text".
        default: Its default, as text; "" if it has none.
        about: Its meaning, from the docstring.
    """

    name: str
    kind: str
    default: str
    about: str


_KINDS = {"int": "whole", "float": "number", "bool": "choice"}


def parameters_of(strategy: type[Strategy]) -> list[Parameter]:
    """Returns the parameters of a strategy's constructor, in its order.

    Example:
        >>> from shoal.strategies import AEASGD
        >>> found = {one.name: one for one in parameters_of(AEASGD)}
        >>> found["period"].kind, found["period"].default
        ('whole', '10')
    """
    about = describe_parameters(strategy)
    return [
        Parameter(
            name=field.name,
            kind=_kind(field.type),
            default="" if field.default is MISSING else str(field.default),
            about=about.get(field.name, ""),
        )
        for field in sorted(fields(strategy), key=lambda one: one.name not in about)
        if field.init
    ]


def _kind(hint: object) -> str:
    """Returns the kind of a type or its name, of an optional one that of its value."""
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    return _KINDS.get(name.replace("| None", "").strip(), "text")


def describe_parameters(strategy: type[Strategy]) -> dict[str, str]:
    """Returns the parameters of a strategy with their meaning, from its docstring.

    Example:
        >>> from shoal.strategies import AEASGD
        >>> list(describe_parameters(AEASGD))[:2]
        ['beta', 'moving_rate']
        >>> describe_parameters(AEASGD)["rho"]
        'With `learning_rate`, moving_rate = rho * learning_rate; default None.'
    """
    text = inspect.cleandoc(strategy.__doc__ or "")
    part = re.search(r"^Args:\n((?:    .*\n|\n)*)", text + "\n", re.MULTILINE)
    found: dict[str, str] = {}
    name = ""
    for line in part[1].splitlines() if part else ():
        start = re.fullmatch(r"    (\w+): (.*)", line)
        if start:
            name = start[1]
            found[name] = start[2]
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return found
