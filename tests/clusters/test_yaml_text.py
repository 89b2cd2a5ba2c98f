"""Malicious files of hosts are refused at once, with their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.clusters.providers import read_cluster_file
from shoal.clusters.yaml_text import read_yaml
from shoal.errors import ConfigError


def bomb() -> str:
    """Short, and a value of a thousand million parts."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    return "\n".join([*lines, "hosts: *a8"])


TRAPS: dict[str, tuple[str | bytes, str]] = {
    "a bomb": (bomb(), r"line 3: the alias \*a1 stands for a value that has aliases"),
    "in itself": ("a: &a [*a]\nhosts: *a", r"line 1: the alias \*a stands for"),
    "the file in itself": ("&a\nhosts: *a", r"the alias \*a stands for"),
    "deep": ("hosts: " + "[" * 20_000 + "]" * 20_000, "more than 50 values deep"),
    "a key twice": (
        "user: a\nuser: b\nhosts: [h]",
        "line 2: 'user' is there twice",
    ),
    "a list as key": ("? [a, b]\n: c\nhosts: [h]", "line 1: a key is not text"),
    "huge": ("hosts: [" + "h, " * 500_000 + "h]", "more than 1,048,576 characters"),
    "code": ("hosts: !!python/object/apply:os.getpid []", "it is not YAML"),
    "a tab": ("hosts:\n\t- h", "it is not YAML"),
    "not UTF-8": (b"hosts: [h\xe4]", "cannot be read"),
    "a list": ("- h", "it holds no fields"),
    "nothing": ("", "it holds no fields"),
}


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.timeout(20)
def test_malicious_yaml_is_refused(tmp_path: Path, trap: str) -> None:
    text, reason = TRAPS[trap]
    path = tmp_path / "lab.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=reason) as caught:
        read_cluster_file(path)
    assert len(str(caught.value)) < 2000


def test_deep_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lab.json"
    path.write_text('{"hosts": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(ConfigError, match="it is no JSON"):
        read_cluster_file(path)


def test_plain_aliases_are_taken() -> None:
    value, lines = read_yaml("one: &one {port: 22}\nhosts:\n  - *one\n  - *one")
    assert value["hosts"] == [{"port": 22}, {"port": 22}]
    assert lines["hosts",] == 2
