"""The base of all messages: each one packs itself into the head of a frame.

Beside `pack` every class has `parse`, which validates: a field that is missing, of
another type or out of range raises one of `fields.WRONG`. Other fields of a head than
those of its class are ignored. Messages of every exchange write both by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from shoal.engine.transport.fields import WRONG, Whole
from shoal.engine.transport.messages.structs import Struct
from shoal.wire.frames import BadFrame, Head

T_co = TypeVar("T_co", covariant=True)


class Message(Struct):
    """One message, without the bytes that may follow it. Abstract.

    Its head begins with the kind of its class. Its fields follow in their order, unless
    a class says otherwise. It is no `ABC`: every exchange asks several times of which
    class a message is, and `isinstance` takes longer there.
    """

    kind: ClassVar[str]

    def pack(self) -> Head:
        """The head of its frame."""
        return {"kind": self.kind, **self.to_json()}


class Report(Message):
    """A report to the controller.

    Args:
        number: Counts the reports that follow from events; None for others.
    """

    number: Whole | None = None

    def pack(self) -> Head:
        """The head of its frame."""
        head = super().pack()
        if self.number is not None:
            head["number"] = self.number
        return head

    def to_json(self) -> dict[str, Any]:
        """The fields except `number`, as plain values."""
        found = super().to_json()
        found.pop("number", None)
        return found


class Parser(Protocol[T_co]):
    """A class of messages, as far as reading is concerned."""

    @property
    def kind(self) -> str:
        """Kind of the messages."""
        ...

    def parse(self, head: Head, /) -> T_co:
        """The inverse of `pack`."""
        ...


def by_kind(*parsers: Parser[T_co]) -> Mapping[str, Parser[T_co]]:
    """Returns classes of messages by their kind."""
    return {parser.kind: parser for parser in parsers}


def read(parsers: Mapping[str, Parser[T_co]], head: Head, sender: str) -> T_co:
    """Reads a message of one of several kinds.

    Args:
        parsers: Parsers by kind.
        head: Head of the frame.
        sender: Name of the sender, for errors.

    Raises:
        BadFrame: It is of another kind, or a field is invalid.
    """
    parser = parsers.get(head["kind"])
    if parser is None:
        raise BadFrame(f"unknown message {head['kind']!r:.40} of {sender}")
    try:
        return parser.parse(head)
    except WRONG as error:
        raise BadFrame(f"{head['kind']!r:.40}: {error!r:.200}") from error
