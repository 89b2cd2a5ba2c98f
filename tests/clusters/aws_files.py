"""Files of clusters on AWS, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shoal.clusters.aws.file import AwsFile

FIELDS: dict[str, Any] = {
    "name": "prod",
    "region": "us-east-1",
    "master": {"type": "m5.xlarge", "disk_gib": 100},
    "workers": {"type": "g5.2xlarge", "count": 4, "min": 1, "disk_gib": 150},
    "access": {"ssh_from": ["203.0.113.7/32"], "key": "ann"},
    "limits": {"max_hours": 24, "budget_dollars": 100},
}


def fields(**changed: Any) -> dict[str, Any]:
    """Returns the fields of a file; a mapping adds to that of the same name."""
    found = json.loads(json.dumps(FIELDS))
    for name, value in changed.items():
        if isinstance(value, dict) and isinstance(found.get(name), dict):
            found[name].update(value)
        else:
            found[name] = value
    return found


def spec(**changed: Any) -> AwsFile:
    return AwsFile.model_validate(fields(**changed))


def write(folder: Path, **changed: Any) -> Path:
    path = folder / "prod.json"
    path.write_text(json.dumps({"provider": "aws", **fields(**changed)}))
    return path
