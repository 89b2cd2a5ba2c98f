"""What a cluster tells other machines: nothing of it is believed that could harm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from shoal.clusters.aws.nodes import Place
from shoal.clusters.aws.published import checked
from tests.clusters.aws_files import fields

PLACE = Place(id="0123abcd", name="prod", account="123456789012", bucket="b")


def told(**changed: Any) -> bytes:
    node = {"number": 0, "address": "prod-master", "private": "10.0.0.1"}
    content = {
        "name": "prod", "id": "0123abcd", "created": 1.0, "backend": "jax",
        "port": 6379, "nodes": [node], "spec": fields(), "hour": 1.5,
        "names": {"i-1": "prod-master"}, **changed,
    }  # fmt: skip
    return json.dumps(content).encode()


def test_it_is_read() -> None:
    found = checked(told(token="secret", hosts={"ssh": "rm -rf /"}), PLACE)
    assert (found.port, found.nodes[0].address) == (6379, "prod-master")
    assert found.facts == {"hour": 1.5, "names": {"i-1": "prod-master"}, "why": ""}
    assert not hasattr(found, "hosts")


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "other"},
        {"id": "0000"},
        {"spec": fields(name="other")},
        {"spec": {}},
        {"backend": "jax; rm"},
        {"environment": "../.."},
        {"port": "22; rm"},
        {"names": {"i-1": "-oProxyCommand=sh"}},
        {"names": {"i-1": "prod-master\n    ProxyCommand sh"}},
        {"nodes": [{"number": 0, "address": "-oProxyCommand=sh"}]},
        {"nodes": [{"number": 0, "address": "prod-master", "private": "-x"}]},
        {"nodes": [{"number": 0, "address": "prod-worker1"}]},
    ],
)
def test_what_was_forged_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises((ValueError, ValidationError)):
        checked(told(**changed), PLACE)
