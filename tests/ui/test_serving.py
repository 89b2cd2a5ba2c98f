"""Settings, ports, token files; the command loads no web server until it is asked."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from shoal.errors import ConfigError
from shoal.ui.guard import LOOPBACK, Access
from shoal.ui.serving import (
    Settings,
    links,
    listen,
    names_by,
    names_of,
    read_token,
)


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
        ({"allow_hosts": ("page.example:80",)}, "Leave the port and the path out"),
        ({"allow_hosts": ("http://a/b",)}, "Leave the port and the path out"),
    ],
)
def test_settings_that_do_not_fit(given: dict, text: str, settings: Settings):
    with pytest.raises(ConfigError, match=text):
        replace(settings, **given).check()
    replace(settings, host="0.0.0.0", is_insecure=True).check()


def access_of(settings: Settings) -> Access:
    return Access(token="t", port=1, hosts=LOOPBACK | names_of(settings))


def test_links_of_loopback(settings: Settings):
    link, other = links(settings, access_of(settings))
    assert link == "http://127.0.0.1:1/?token=t"
    assert "ssh -L 1:127.0.0.1:1 " in other
    settings = replace(settings, host="::1")
    link, other = links(settings, access_of(settings))
    assert link == "http://[::1]:1/?token=t"
    assert "ssh -L 1:[::1]:1 " in other


def test_a_page_on_all_addresses_is_asked_for_by_each(settings: Settings):
    settings = replace(settings, host="0.0.0.0", is_insecure=True)
    access = access_of(settings)
    link, other, warning = links(settings, access)
    assert link == "http://127.0.0.1:1/?token=t"
    own = socket.gethostname()
    assert f"http://{own}:1/?token=t" in other
    assert "anybody on the network can read the token" in warning
    found = {a.address for one in psutil.net_if_addrs().values() for a in one
             if a.family == socket.AF_INET}  # fmt: skip
    assert found
    for name in (own, *found):
        assert access.allows(f"{name}:1")
    assert not access.allows("0.0.0.0:1")


def test_an_address_of_its_own_needs_no_second_link(settings: Settings):
    settings = replace(
        settings, host="192.0.2.7", tls_cert=Path("c"), tls_key=Path("k")
    )
    access = replace(access_of(settings), is_encrypted=True)
    assert links(settings, access) == ["https://192.0.2.7:1/?token=t"]


def test_names_of_proxies(settings: Settings):
    settings = replace(settings, allow_hosts=("a.example", "HTTPS://b.example"))
    settings.check()
    assert {"a.example", "b.example"} < names_of(settings)
    assert names_by(settings, "https") == {"b.example"}


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
