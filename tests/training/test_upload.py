"""What is sent to a cluster says how much of it has gone."""

from __future__ import annotations

import sys

import pytest

from shoal.training import remote_fit


@pytest.mark.parametrize(
    ("is_live", "said"),
    [
        (False, "sent 1.0 of 3.0 MB, packed\nsent 3.0 of 3.0 MB, packed\n"),
        (True, "\rsent 1.0 of 3.0 MB, packed\rsent 3.0 of 3.0 MB, packed\n"),
    ],
)
def test_lines_on_a_pipe_and_one_line_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    is_live: bool, said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(remote_fit, "LIVE_S", 0.0)
    monkeypatch.setattr(remote_fit, "TOLD_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_live, raising=False)
    upload = remote_fit._Upload()
    upload.tell(1_000_000, 3_000_000)
    upload.tell(3_000_000, 3_000_000)
    assert capsys.readouterr().err == said


def test_a_short_upload_prints_nothing_on_a_pipe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    upload = remote_fit._Upload()
    upload.tell(1, 2)
    upload.tell(2, 2)
    assert capsys.readouterr().err == ""
