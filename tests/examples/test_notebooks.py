"""Notebooks are the scripts beside them, and have the lines of 2016."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from tests.spark.lines_of_2016 import CHANGED, SAME

EXAMPLES = Path(__file__).parents[2] / "examples"
HIGGS = EXAMPLES / "higgs_spark.py"


@pytest.fixture(scope="module")
def maker() -> Any:
    spec = spec_from_file_location("make_notebook", EXAMPLES / "make_notebook.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_notebook_is_the_script(maker: Any):
    made = maker.notebook_of(HIGGS.read_text())
    assert HIGGS.with_suffix(".ipynb").read_text() == made, "run: make notebooks"


def test_commands_of_ipython_are_cells(maker: Any):
    made = maker.notebook_of("# %%\n# %matplotlib inline\nx = 1  # fmt: skip\n# %%\n")
    assert '"%matplotlib inline\\n",\n    "x = 1"' in made


def test_lines_of_2016_stand_as_they_were_or_are_changed():
    script = HIGGS.read_text()
    assert [line for line in SAME if line not in script] == []
    assert [new for new in CHANGED.values() if new not in script] == []
    assert [old for old in CHANGED if old in script] == []
