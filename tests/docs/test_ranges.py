"""The ranges that the reference gives are those that the code accepts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from shoal import strategies
from shoal.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "strategies.md"
ROW = re.compile(r"(?m)^\| `(\w+)` \| `(\w+)` \| \w* \| (.+?) \| `")

ACCEPTED = {
    "1": (1,),
    "above 0": (0.001, 2.0),
    "at least 0": (0, 7),
    "at least 1": (1, 7),
    "at least 1; 0 is an epoch": (0, 1, 7),
    "(0, 1]": (0.001, 1.0),
    "[0, 1)": (0.0, 0.999),
}
REFUSED = {
    "1": (2,),
    "above 0": (0.0,),
    "(0, 1]": (0.0, 1.001),
    "[0, 1)": (-0.001, 1.0),
}
MORE = {
    "rho": {"learning_rate": 0.001},
    "warmup_epochs": {"scale_learning_rate": True},
}
"""Parameters without which another one has no meaning."""


@pytest.mark.parametrize(
    ("strategy", "parameter", "accepted"), ROW.findall(PAGE.read_text())
)
def test_a_strategy_accepts_the_range_of_the_reference(
    strategy: str, parameter: str, accepted: str
):
    found = strategies.registry.load(strategy)
    more: dict[str, Any] = dict(MORE.get(parameter, {}))
    for value in ACCEPTED[accepted]:
        assert getattr(found(**{parameter: value}, **more), parameter) == value
    for value in REFUSED.get(accepted, (-1,)):
        with pytest.raises(ConfigError):
            found(**{parameter: value}, **more)
