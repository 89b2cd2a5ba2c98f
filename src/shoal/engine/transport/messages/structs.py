"""Values whose fields are declared once: name, type, and the reader that validates it.

A class lists its fields as a dataclass does, with types from `fields`, which carry
their readers. This gives it a constructor, `to_json` in the order of the fields, and
`parse`. A field with a default may be missing in a head. One whose default is None is
left out of a head when it is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType, NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    NoReturn,
    Self,
    TypeAlias,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from shoal.wire.frames import Head

Reader: TypeAlias = Callable[[Any], Any]
Readers: TypeAlias = list[tuple[str, Reader]]


class Spread(NamedTuple):
    """Declares a field whose own fields stand in the head beside the others.

    Args:
        parse: Reads the value from the head.
        to_json: The inverse of `parse`.
        first: The key by which a head shows that it has the value; without it, an
            optional value is None.
    """

    parse: Callable[[Head], Any]
    to_json: Callable[[Any], dict[str, Any]]
    first: str = ""


# Not a dataclass, which compiles six methods for each class: for 100 classes that took
# 0.04 s of processor time at the start of every server (decision 27).
@dataclass_transform(kw_only_default=True, frozen_default=True)
class Struct:
    """A frozen value with keyword-only fields. Abstract.

    Example:
        >>> from shoal.engine.transport.messages.standby import Mapped
        >>> mapped = Mapped.parse({"kind": "mapped", "rank": 2.0, "incarnation": 1})
        >>> mapped, mapped.replace(rank=3).to_json()
        (Mapped(rank=2, incarnation=1), {'rank': 3, 'incarnation': 1})
    """

    _defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    _needed: ClassVar[frozenset[str]] = frozenset()
    _optional: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        hints: Mapping[str, str] = vars(cls).get("__annotations__", {})
        own = [name for name, hint in hints.items() if not hint.startswith("ClassVar")]
        # In the order of the fields, which is that of the bytes on the wire.
        cls._defaults = {**cls._defaults, **{n: vars(cls).get(n, ...) for n in own}}
        cls._needed = frozenset(n for n, v in cls._defaults.items() if v is ...)
        cls._optional = frozenset(n for n, v in cls._defaults.items() if v is None)

    def __init__(self, **values: Any) -> None:
        found = {**self._defaults, **values}
        if len(found) != len(self._defaults) or not self._needed <= values.keys():
            fields = ", ".join(self._defaults)
            received = ", ".join(values)
            raise TypeError(
                f"{type(self).__name__} takes {fields}; received {received}"
            )
        object.__setattr__(self, "__dict__", found)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen; use replace")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __repr__(self) -> str:
        found = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({found})"

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with other values of some fields."""
        return type(self)(**{**vars(self), **changes})

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        *_, spreads = self._readers()
        if not spreads and not self._optional:
            return {**vars(self)}
        found: dict[str, Any] = {}
        for name, value in vars(self).items():
            if value is None and name in self._optional:
                continue
            if name in spreads:
                found |= spreads[name].to_json(value)
            else:
                found[name] = value
        return found

    @classmethod
    def parse(cls, head: Head) -> Self:
        """Reads and validates the fields of a head; it may have others.

        Raises:
            KeyError: A field is missing; or another of `fields.WRONG`, of its reader.
        """
        needed, others, spreads = cls._readers()
        found = {**cls._defaults}
        for name, read in needed:
            found[name] = read(head[name])
        for name, read in others:
            if name in head:
                found[name] = read(head[name])
        for name, spread in spreads.items():
            if found[name] is ... or spread.first in head:
                found[name] = spread.parse(head)
        parsed = cls.__new__(cls)  # all fields are there: nothing to check
        object.__setattr__(parsed, "__dict__", found)
        return parsed

    @classmethod
    @cache  # filled when a process meets the first message of a class: it meets few
    def _readers(cls) -> tuple[Readers, Readers, Mapping[str, Spread]]:
        """Readers of fields that are needed, of others, and of those in the head."""
        hints = get_type_hints(cls, include_extras=True)
        found = {name: _reader(hints[name]) for name in cls._defaults}
        spreads = {n: read for n, read in found.items() if isinstance(read, Spread)}
        plain = [(n, read) for n, read in found.items() if not isinstance(read, Spread)]
        needed = [(name, read) for name, read in plain if name in cls._needed]
        return needed, [pair for pair in plain if pair not in needed], spreads


def _reader(hint: Any) -> Reader | Spread:
    """The reader that a type carries, or its part that is not None."""
    if get_origin(hint) is Annotated:
        return hint.__metadata__[0]
    [part] = (part for part in get_args(hint) if part is not NoneType)
    read = _reader(part)
    return read if isinstance(read, Spread) else partial(_unless_none, read)


def _unless_none(read: Reader, value: Any) -> Any:
    return None if value is None else read(value)
