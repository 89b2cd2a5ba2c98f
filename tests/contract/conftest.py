"""What contract tests share: golden curves, compared or written anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent.parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regen-golden",
        action="store_true",
        help="write tests/golden anew instead of comparing; review the diff",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, Sequence[float]], None]:
    """Compares a curve with the one kept under a name, to 1 part in 10,000."""
    # The option is unknown when pytest was started on another folder.
    is_new = request.config.getoption("--regen-golden", default=False)

    def check(name: str, curve: Sequence[float]) -> None:
        path = GOLDEN / f"{name}.json"
        if is_new:
            rounded = [float(f"{value:.6g}") for value in curve]
            path.write_text(json.dumps({"losses": rounded}, indent=1) + "\n")
            return
        if not path.exists():
            pytest.fail(
                f"no golden curve {path.name}; write it with "
                "pytest tests/contract --regen-golden"
            )
        kept = json.loads(path.read_text())["losses"]
        assert list(curve) == pytest.approx(kept, rel=1e-4, abs=1e-9)

    return check
