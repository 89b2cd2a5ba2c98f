"""What may reach a terminal: properties over any text and any bytes."""

from __future__ import annotations

import io
import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal import terminal
from shoal.errors import ShoalError, ShoalWarning, WorkerFailed
from shoal.terminal import Lines, coloured, one_line, output_of_process, plain

HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x1b[1;1H\x1b]52;c;ZWNobw==\x1b\\\x1b[8mhid\x1b[0m"
    "\x9b2J\x9d0;t\x9c\rover\x08\x7f\u202eabc\u2066\u2028\udc9b\x1bPq\x1b\\\x1bc"
)
BIDI = set(map(chr, [0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F),
                     *range(0x2066, 0x206A)]))  # fmt: skip
MIXED = st.lists(
    st.one_of(
        st.text(),
        st.sampled_from(["\x1b", "[", "m", "31", ";", "0", "8", "\x1b[31m", "\x9b",
                         "\x1b[0m", "\x1b[1;8m", "\x1b[38;5;9m", "2J", HOSTILE]),
    )
).map("".join)  # fmt: skip


def is_harmless(text: str) -> bool:
    """By the tables of Unicode, not by those of the code."""
    return all(
        letter in "\n\t"
        or (
            unicodedata.category(letter) not in ("Cc", "Cs", "Zl", "Zp")
            and letter not in BIDI
        )
        for letter in text
    )


@given(MIXED)
@example(HOSTILE)
def test_plain_text_holds_nothing_that_a_terminal_obeys(text: str):
    assert is_harmless(plain(text))
    assert is_harmless(one_line(text))
    assert not {"\n", "\t"} & set(one_line(text))


@given(MIXED)
def test_harmless_text_is_shown_as_it_is(text: str):
    harmless = "".join(filter(is_harmless, text))
    assert plain(harmless) == harmless
    assert plain(plain(text)) == plain(text)


@given(MIXED)
@example(HOSTILE)
@example("\x1b[31m\x1b\x1b[0m[2J")
def test_colours_alone_may_pass_and_end_with_the_text(text: str):
    found = coloured(text)
    sequences = re.findall("\x1b\\[([0-9;]*)m", found)
    assert is_harmless(re.sub("\x1b\\[[0-9;]*m", "", found))
    for numbers in sequences:
        assert not {"5", "6", "7", "8", "05", "08"} & set(
            re.sub(r"[34]8;(5;\d+|2;\d+;\d+;\d+)", "", numbers).split(";")
        )
    assert not sequences or sequences[-1] in ("", "0", "00")


def test_output_of_a_process_has_colours_on_a_terminal_only(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = "\x1b[1;32mfine\x1b[0m \x1b[8mhidden\x1b[0m \x1b[2J"
    shown = output_of_process(text, Terminal())
    assert shown == "\x1b[1;32mfine\x1b[0m \\x1b[8mhidden\x1b[0m \\x1b[2J"
    assert output_of_process(text, io.StringIO()) == "fine hidden \\x1b[2J"
    monkeypatch.setenv("NO_COLOR", "1")
    assert output_of_process(text, Terminal()) == "fine hidden \\x1b[2J"


def test_say_shows_its_arguments(capsys: pytest.CaptureFixture[str]):
    terminal.say(HOSTILE)
    terminal.say(HOSTILE, err=True)
    terminal.say_output(HOSTILE, before=f"[{HOSTILE}] ")
    out, err = capsys.readouterr()
    assert is_harmless(out)
    assert is_harmless(err)
    assert "owned" in out


@pytest.mark.parametrize("kind", [ShoalError, ShoalWarning, WorkerFailed])
def test_errors_and_warnings_show_text_of_workers(kind: type[Exception]):
    assert is_harmless(str(kind(f"a worker said: {HOSTILE}\nnext line")))
    assert "owned" in str(kind(HOSTILE))


@given(st.binary(), st.lists(st.integers(1, 9)), st.integers(4, 9))
@example(b"a\r\nb\rc\n\n", [1] * 9, 4)
@example("\u00e4\u20ac\U0001f41f".encode() * 9, [3], 4)
def test_lines_are_the_same_however_bytes_come(
    data: bytes, cuts: list[int], longest: int
):
    def joined(longest: int, portions: list[bytes]) -> list[str]:
        lines = Lines(longest)
        found, text = [], ""
        for portion in portions:
            for piece in lines.feed(portion):
                text += piece.text
                if piece.is_end:
                    found.append(text)
                    text = ""
            assert lines.held_bytes <= 2 * longest
        return [*found, text + "".join(piece.text for piece in lines.end())]

    portions, rest = [], data
    for cut in cuts:
        portions.append(rest[:cut])
        rest = rest[cut:]
    whole = joined(1 << 16, [data])
    pieces = joined(longest, [*portions, rest])
    if _is_utf8(data):
        assert pieces == whole
    normal = re.sub(r"\r\n|\r", "\n", data.decode(errors="replace"))
    assert "".join(whole) == normal.replace("\n", "")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_line_without_end_takes_little_memory():
    lines = Lines(1 << 10)
    got = 0
    for _ in range(1 << 10):
        for piece in lines.feed(b"x" * 1000):
            assert not piece.is_end
            got += len(piece.text)
        assert lines.held_bytes <= 2 << 10
    assert got + sum(len(piece.text) for piece in lines.end()) == 1000 << 10
