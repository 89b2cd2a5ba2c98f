"""Makes a notebook of a script: `python make_notebook.py higgs_spark.py`.

Cells begin with `# %%`, texts with `# %% [markdown]`. Commands of IPython stand in
comments: `# !date`, `# %matplotlib inline`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

_COMMAND = re.compile(r"^# (?=!|%\w)")


def notebook_of(script: str) -> str:
    """Returns the text of a notebook with the cells of a script.

    Example:
        >>> cells = json.loads(notebook_of("# %%\\n# !date\\n"))["cells"]
        >>> cells[0]["source"]
        ['!date']
    """
    cells = []
    for number, part in enumerate(re.split(r"^# %%", script, flags=re.M)[1:]):
        head, _, body = part.partition("\n")
        is_text = "[markdown]" in head
        pattern = re.compile(r"^# ?") if is_text else _COMMAND
        lines = [pattern.sub("", line) for line in body.strip().split("\n")]
        lines = [line.removesuffix("  # fmt: skip") for line in lines]
        source = [line + "\n" for line in lines[:-1]] + lines[-1:]
        cell = {"id": f"cell-{number}", "metadata": {}, "source": source}
        if is_text:
            cells.append({"cell_type": "markdown", **cell})
        else:
            cells.append(
                {"cell_type": "code", "execution_count": None, "outputs": [], **cell}
            )
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1) + "\n"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.with_suffix(".ipynb").write_text(notebook_of(path.read_text()))
