"""Text for a terminal. This file decides which characters may reach one.

Names, warnings and logs come from storage, from workers and from other hosts. A
terminal executes escape sequences: they clear it, change its title, fill the
clipboard, hide text. All output of Shoal is written by `say`, which shows every
such character instead of sending it. Colours of a process's own output may pass.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import IO, NamedTuple, TextIO, final

LONGEST_BYTES = 1 << 16
"""Bytes of a line held in memory; longer lines are yielded in pieces."""

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of writing
    "\u2028\u2029\ud800-\udfff]"  # further ends of lines; halves of characters
)
_SGR = re.compile("\x1b\\[[0-9;:]*m")
_COLOUR = re.compile(
    r"\x1b\[(?:(?:(?:0?[0-4]|2[1-4]|3[0-79]|4[0-79]|9[0-7]|10[0-7]"
    r"|[34]8;5;\d{1,3}|[34]8;2;\d{1,3};\d{1,3};\d{1,3})(?:;(?=[0-9])|(?=m)))*)m"
)
"""Colours, bold, underline and their ends; neither hidden nor blinking text."""
_RESETS = ("\x1b[m", "\x1b[0m", "\x1b[00m")
_ENDS = re.compile(rb"\r\n|\n|\r")


def plain(text: str) -> str:
    r"""Makes control characters visible; keeps tabs and line ends.

    Example:
        >>> print(plain("\x1b]0;title\x07 fish"))
        \x1b]0;title\x07 fish
    """
    return _OBEYED.sub(_shown, text)


def without_colours(text: str) -> str:
    r"""Removes colours, as an error of Keras has them.

    Example:
        >>> without_colours("\x1b[1mno such layer\x1b[0m")
        'no such layer'
    """
    return _SGR.sub("", text)


def one_line(text: str) -> str:
    r"""Like `plain`, for a name or a cell: line ends and tabs are made visible, too.

    Example:
        >>> print(one_line("a\nb"))
        a\x0ab
    """
    return plain(text).replace("\n", "\\x0a").replace("\t", "\\x09")


def coloured(text: str) -> str:
    r"""Like `plain`, but colours stay; they are reset at the end.

    Example:
        >>> coloured("\x1b[31mred\x1b[2J")
        '\x1b[31mred\\x1b[2J\x1b[0m'
    """
    parts: list[str] = []
    at, last = 0, ""
    for found in _COLOUR.finditer(text):
        last = found[0]
        parts += [plain(text[at : found.start()]), last]
        at = found.end()
    parts.append(plain(text[at:]))
    return "".join(parts) + ("" if last in ("", *_RESETS) else "\x1b[0m")


def output_of_process(text: str, stream: TextIO) -> str:
    """Returns a process's output for a stream: with colours on a terminal."""
    return coloured(text) if has_colours(stream) else plain(without_colours(text))


def has_colours(stream: TextIO) -> bool:
    """Whether a stream is a terminal that shows colours."""
    no_colours = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not no_colours


def say(text: object = "", *, err: bool = False, end: str = "\n") -> None:
    """Writes text to standard output or standard error, made safe by `plain`.

    Args:
        text: Text to write.
        err: Whether to write to standard error.
        end: Text after it.
    """
    write(sys.stderr if err else sys.stdout, plain(str(text)) + end)


def say_output(
    text: str, *, before: str = "", err: bool = False, end: str = "\n"
) -> None:
    """Writes a line of a process.

    Args:
        text: Line of the process.
        before: Prefix by Shoal.
        err: Whether to write to standard error.
        end: Text after it.
    """
    stream = sys.stderr if err else sys.stdout
    write(stream, f"{plain(before)}{output_of_process(text, stream)}{end}")


def write(stream: TextIO, text: str) -> None:
    """Writes text that is safe for a terminal, in any encoding of the stream."""
    try:
        stream.write(text)
    except UnicodeEncodeError:  # for example metric names on an ASCII terminal
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, errors="replace").decode(encoding))
    stream.flush()


class LinePiece(NamedTuple):
    """A line, or a part of one that is too long for memory."""

    text: str
    is_end: bool = True


@final
class Lines:
    r"""Cuts bytes that come in portions of any size into lines, in bounded memory.

    Lines end with a newline or a carriage return, which progress bars write.

    Args:
        longest: Bytes of a line held in memory; longer lines are yielded in pieces.

    Example:
        >>> lines = Lines()
        >>> [piece.text for data in (b"a\nb", b"c\n\n") for piece in lines.feed(data)]
        ['a', 'bc', '']
    """

    def __init__(self, longest: int = LONGEST_BYTES) -> None:
        self._longest = longest
        self._rest = b""
        self._is_open = False  # a part of the line has been yielded

    def feed(self, data: bytes) -> Iterator[LinePiece]:
        """Adds bytes; yields the lines that are complete now."""
        for start in range(0, len(data), self._longest):
            yield from self._feed(data[start : start + self._longest])

    def end(self) -> Iterator[LinePiece]:
        """Yields the text after the last line end."""
        rest, self._rest = self._rest.removesuffix(b"\r"), b""
        if rest or self._is_open:
            yield LinePiece(_text(rest))
        self._is_open = False

    @property
    def held_bytes(self) -> int:
        """Returns the bytes of the unfinished line."""
        return len(self._rest)

    def _feed(self, data: bytes) -> Iterator[LinePiece]:
        held, at = self._rest + data, 0
        for end in _ENDS.finditer(held):
            if end[0] == b"\r" and end.end() == len(held):
                break  # the newline that belongs to it may follow
            line = held[at : end.start()]
            if line or self._is_open or end[0] != b"\r":
                yield LinePiece(_text(line))
            self._is_open = False
            at = end.end()
        self._rest = held[at:]
        if len(self._rest) > self._longest:
            cut, self._is_open = _cut(self._rest), True
            yield LinePiece(_text(self._rest[:cut]), is_end=False)
            self._rest = self._rest[cut:]


def _text(line: bytes) -> str:
    return line.decode(errors="replace")


def _cut(data: bytes) -> int:
    """Returns where bytes can be cut without cutting a character."""
    for back in range(1, 5):
        if data[-back] & 0xC0 != 0x80:
            return len(data) - back
    return len(data) - 1


def _shown(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def relay(pipe: IO[bytes], *, err: bool = False) -> None:
    """Writes the output of a program, line by line, until its pipe ends.

    Args:
        pipe: Read end of the program's output.
        err: Whether to write to standard error.
    """
    lines, reader = Lines(), getattr(pipe, "read1", pipe.read)
    while data := reader(LONGEST_BYTES):
        for piece in lines.feed(data):
            say_output(piece.text, err=err, end="\n" if piece.is_end else "")
    for piece in lines.end():
        say_output(piece.text, err=err)
