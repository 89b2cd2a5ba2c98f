"""What a strategy says of itself: its kind, parameters, their meaning, its paper."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

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
