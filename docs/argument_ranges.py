"""Units and ranges of arguments, read from the sentences of docstrings.

A docstring gives them in a fixed form: "Local optimizer steps between two exchanges, at
least 1". What has another form is left out of the tables and stays in the text.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

UNITS = {
    r"Seconds": "seconds",
    r"Samples": "samples",
    r"Epochs|(Number of )?the epoch": "epochs",
    r"(\w+ )?optimizer steps|Steps": "steps",
    r"Training processes|Waiting processes|Processes": "processes",
    r"(Compute )?threads": "threads",
    r"(Ray's )?CPUs|Cores": "cores",
    r"Number of servers": "servers",
    r"Replacements": "replacements",
    r"Number of workers": "workers",
    r"Models": "models",
    r"(More )?workers": "workers",
    r"Rows": "rows",
    r"Passes": "passes",
    r"Batches": "batches",
    r"GPUs": "GPUs",
    r"Executors": "executors",
}
"""How the description of an argument with a unit begins."""

RANGES = {
    r"at least ([\d.]+), or 0 for an? (?:whole )?epoch": r"at least \1; 0 is an epoch",
    r"at least ([\d.]+), or a share": r"at least \1, or a share",
    r"at least ([\d.]+\d|\d+)": r"at least \1",
    r"\bin ([\[(][\d.]+, [\d.]+[\])])": r"\1",
    r"from (\d+) to below (\d+)": r"[\1, \2)",
    r"above (\d+)": r"above \1",
    r", from (\d+)[;,.]": r"at least \1",
    r"^Always (\d+)\.": r"\1",
    r"^0, or 1 for": "0 or 1",
}
"""How a range is written in a description, and in a table."""

OPEN = {"format", "input_col", "monitor"}
"""Arguments of type `str` whose numbers or quoted values are no range."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An argument, or a parameter of a strategy.

    Args:
        name: Its name.
        unit: What a number of it counts; empty for none.
        range: Which values are accepted; empty where the docstring does not say.
        default: The default as in code; empty for none.
    """

    name: str
    unit: str
    range: str
    default: str

    @property
    def cells(self) -> str:
        """Its row of a table, without the bar at the beginning."""
        default = f"`{self.default}`" if self.default else ""
        return f"`{self.name}` | {self.unit} | {self.range} | {default} |"


def descriptions(docstring: str | None) -> dict[str, str]:
    """Returns what the section `Args` of a docstring says, by argument."""
    text = inspect.cleandoc(docstring or "")
    block = f"\n{text}".partition("\nArgs:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"(?m)^    (\w+): (.*(?:\n {8}.*)*)", block)
    return {name: " ".join(meaning.split()) for name, meaning in entries}


def arguments(
    found: Any, *, strategies: Collection[str] = (), is_whole: bool = False
) -> list[Argument]:
    """Returns the arguments of a function or class whose range is known.

    What the docstring of a class leaves open is taken from the class that it extends.

    Args:
        found: The function or class.
        strategies: Names of strategies: quoted, they are no choice.
        is_whole: Whether to return all arguments.
    """
    family = getattr(found, "__mro__", (found,))
    meanings = [descriptions(each.__doc__) for each in family]
    known: list[Argument] = []
    for name, parameter in inspect.signature(found).parameters.items():
        texts = [each[name] for each in meanings if name in each]
        accepted = "" if name in OPEN else next(filter(None, map(_range, texts)), "")
        kinds = set(str(parameter.annotation).split(" | "))
        if texts and kinds <= {"str", "None"} and name not in OPEN:
            words = dict.fromkeys(re.findall(r'"(\w+)"', texts[0]))
            choices = [f'`"{word}"`' for word in words if word not in strategies]
            accepted = ", ".join(choices) if len(choices) > 1 else accepted
        if accepted or is_whole:
            has_default = parameter.default is not parameter.empty
            known.append(
                Argument(
                    name=name,
                    unit=next(filter(None, map(_unit, texts)), ""),
                    range=accepted,
                    default=repr(parameter.default) if has_default else "",
                )
            )
    return known


def _unit(text: str) -> str:
    units = (u for begin, u in UNITS.items() if re.match(rf"(?i)({begin})\b", text))
    return next(units, "")


def _range(text: str) -> str:
    for written, shown in RANGES.items():
        if match := re.search(written, text):
            return match.expand(shown)
    return ""
