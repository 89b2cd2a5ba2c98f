"""Settings, ports, token files; the command loads no web server until it is asked."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import ConfigError
from shoal.ui.serving import Settings, listen, read_token


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(roots=("runs",), cache=None, state=tmp_path, port=0)


def test_a_token_stays_for_a_port(tmp_path: Path):
    first = read_token(tmp_path, 8766)
    assert read_token(tmp_path, 8766) == first
    assert read_token(tmp_path, 8767) != first
    file = tmp_path / "ui" / "8766"
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(first) >= 43  # 256 bits


def test_a_token_that_others_could_read_is_not_used(tmp_path: Path):
    first = read_token(tmp_path, 1)
    (tmp_path / "ui" / "1").chmod(0o644)
    assert read_token(tmp_path, 1) != first
    (tmp_path / "ui" / "1").write_text("short\n")
    assert len(read_token(tmp_path, 1)) >= 43


def test_a_token_that_cannot_be_kept(tmp_path: Path):
    (tmp_path / "ui").touch()
    with pytest.raises(ConfigError, match="cannot be kept"):
        read_token(tmp_path, 1)


def test_a_port_that_is_taken_names_who_has_it(settings: Settings):
    with listen(settings) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is taken: .*process"):
            listen(replace(settings, port=port))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"host": "0.0.0.0"}, "--insecure"),
        ({"tls_cert": Path("x")}, "go together"),
        ({"base": "shoal"}, "Begin it with one slash"),
        ({"base": "//evil"}, "Begin it with one slash"),
    ],
)
def test_settings_that_do_not_fit(given: dict, text: str, settings: Settings):
    with pytest.raises(ConfigError, match=text):
        replace(settings, **given).check()
    replace(settings, host="0.0.0.0", is_insecure=True).check()


def test_help_loads_no_web_server():
    code = (
        "import sys; from shoal.cli.app import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'starlette', 'uvicorn', 'jinja2'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_page_loads_no_backend():
    code = (
        "import sys, shoal.ui.serving\n"
        "assert not {'keras', 'jax', 'torch', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
