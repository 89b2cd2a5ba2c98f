"""`compile(jit_compile=True)` on torch: honoured, and refused without a compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

import shoal
from shoal.clusters.local import read_machine
from shoal.errors import PlanError
from tests.backends.cases import BACKEND, make
from tests.backends.test_every_backend import close, fit

pytestmark = pytest.mark.skipif(BACKEND != "torch", reason="torch compiles by C++")


def compiled() -> tuple[Any, dict[str, Any]]:
    model, data = make("arrays")
    model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=True)
    return model, data


def test_without_a_compiler_the_plan_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    model, data = compiled()
    with pytest.raises(PlanError, match=r"no C\+\+ compiler.*jit_compile=False"):
        shoal.plan(model, **data, strategy="aeasgd", workers=2)
    # Gradients are taken without.
    assert shoal.plan(model, **data, strategy="all_reduce", workers=2)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not read_machine(BACKEND).has_compiler, reason="no C++ compiler is installed here"
)
def test_a_compiled_model_trains_to_the_weights_of_an_eager_one() -> None:
    ours, data = compiled()
    plain, _ = compiled()
    plain.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=False)
    fit(plain, data)
    # On a process: what compiles stays in it, with threads and variables.
    fit(ours, data, strategy="local_sgd:period=3", workers=1, cluster="local")
    close("arrays", ours, plain)
