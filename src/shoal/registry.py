"""Names to objects: the user's names, those of plug-ins, and the nearest match.

A name stands for "module:attribute", which is imported when the name is used and
not when names are listed, so that a list costs no import.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, final

from shoal.errors import ConfigError

T = TypeVar("T")


def is_known(name: object, known: Iterable[str]) -> bool:
    """Whether a value of any kind is one of some names.

    Example:
        >>> is_known("adag", ["adag"]), is_known(["adag"], ["adag"])
        (True, False)
    """
    return isinstance(name, str) and name in known


def did_you_mean(kind: str, name: object, known: Iterable[str]) -> str:
    """Returns the message about an unknown name: the nearest one, then all known.

    Example:
        >>> print(did_you_mean("strategy", "eagsd", ["adag", "easgd"]))
        unknown strategy 'eagsd'. Did you mean 'easgd'?
          Known: adag, easgd.
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.55)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {name!r}.{hint}\n  Known: {', '.join(names) or 'none'}."


@final
@dataclass(frozen=True, kw_only=True)
class Registry(Generic[T]):
    """Finds a class by its name, among the built-in ones and those of plug-ins.

    A package adds a name with one line in its metadata, for example

        [project.entry-points."shoal.strategies"]
        gossip = "my_package.gossip:Gossip"

    Args:
        kind: Kind of the names, for messages: "strategy".
        group: Entry-point group of plug-ins: "shoal.strategies".
        builtin: Name -> "module:attribute".
        base: Common base class of everything in the registry.

    Example:
        >>> colours = Registry(
        ...     kind="number", group="none", builtin={"whole": "builtins:int"}, base=int
        ... )
        >>> colours.names(), colours.load("whole")
        (['whole'], <class 'int'>)
    """

    kind: str
    group: str
    builtin: Mapping[str, str]
    base: type[T]

    def names(self) -> list[str]:
        """Returns all known names, sorted; imports none of them."""
        return sorted({*self.builtin, *(entry.name for entry in self._plugins())})

    def source(self, name: str) -> str:
        """Returns the origin of a name: "shoal", or the plug-in's distribution.

        Raises:
            ConfigError: The name is unknown.
        """
        if name in self.builtin:
            return "shoal"
        return _distribution(self._plugin(name))

    def load(self, name: str) -> type[T]:
        """Imports and returns the class a name stands for.

        Raises:
            ConfigError: The name is unknown or claimed twice, or its plug-in cannot be
                imported or gives something else than a subclass of `base`.
        """
        if name in self.builtin:
            self._refuse_second_claim(name)
            module, attribute = self.builtin[name].split(":")
            return getattr(import_module(module), attribute)
        entry = self._plugin(name)
        try:
            found: object = entry.load()
        except Exception as error:
            raise ConfigError(
                f"{self.kind} {name!r} of {_distribution(entry)} cannot be imported: "
                f"{type(error).__name__}: {error}. Expected {entry.value} to exist. "
                "Repair or uninstall the plug-in."
            ) from error
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise ConfigError(
                f"{self.kind} {name!r} of {_distribution(entry)} is {found!r}. "
                f"Expected a subclass of {self.base.__name__}. "
                "Repair or uninstall the plug-in."
            )
        return found

    def unknown(self, name: str) -> ConfigError:
        """Returns the error about an unknown name."""
        return ConfigError(did_you_mean(self.kind, name, self.names()))

    def _plugins(self) -> list[EntryPoint]:
        """Returns the entry points of the group; one installed twice counts once."""
        found = {(e.name, e.value): e for e in entry_points(group=self.group)}
        return list(found.values())

    def _plugin(self, name: str) -> EntryPoint:
        """Returns the one entry point of a name."""
        found = [entry for entry in self._plugins() if entry.name == name]
        if not found:
            raise self.unknown(name)
        if len(found) > 1:
            raise self._claimed_twice(name, found)
        return found[0]

    def _refuse_second_claim(self, name: str) -> None:
        """Refuses a plug-in with the name of a built-in class."""
        found = [entry for entry in self._plugins() if entry.name == name]
        if found:
            raise self._claimed_twice(name, found)

    def _claimed_twice(self, name: str, found: list[EntryPoint]) -> ConfigError:
        owners = sorted(_distribution(entry) for entry in found)
        if name in self.builtin:
            owners.insert(0, "shoal")
        return ConfigError(
            f"{self.kind} {name!r} is claimed by {' and '.join(owners)}. "
            "Expected one package for each name. "
            f"Uninstall one of them, or pass the {self.kind} as an object."
        )


def _distribution(entry: EntryPoint) -> str:
    """Returns the distribution of an entry point, for messages."""
    return entry.dist.name if entry.dist is not None else entry.value
