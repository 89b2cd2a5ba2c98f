"""Commands that pages show do the same in a terminal, in whatever folder it is."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.app import app
from tests.ui.conftest import Serving, make_run

COMMAND = re.compile(r'<p class="command">[^<]*<code>([^<]*)</code> <button')


@pytest.mark.parametrize("folder", ["runs", "my runs"])
def test_commands_of_pages_run_in_another_folder(
    folder: str, serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = tmp_path / folder
    run = make_run(root, "fish")
    served = serving.start(root)
    key = next(iter(served.site.roots))
    monkeypatch.delenv("SHOAL_RUNS", raising=False)
    monkeypatch.chdir(tmp_path)
    own = f"/runs/{key}/{run.id}"
    found = [
        html.unescape(command)
        for path in ("/", own, f"{own}/logs", f"/compare?runs={key}/{run.id}")
        for command in COMMAND.findall(served.ask(path).text)
    ]
    assert [shlex.split(command)[1:3] for command in found] == [
        ["runs", "--root"], ["runs", "show"], ["runs", "status"], ["runs", "logs"],
        ["runs", "compare"],
    ]  # fmt: skip
    for command in found:
        program, *words = shlex.split(command)
        assert program == "shoal"
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert "fish" in done.output or "hello" in done.output


def test_a_run_that_can_be_resumed_has_its_command(serving: Serving, root: Path):
    run = make_run(root, "fish", status="interrupted")
    text = serving.start(root).ask(f"/runs/runs/{run.id}").text
    assert f"shoal runs resume {run.folder.url}" in html.unescape(text)
