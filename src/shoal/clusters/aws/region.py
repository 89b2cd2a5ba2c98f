"""A spec with its region, found without AWS: in the file, variables, the profile."""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Mapping
from pathlib import Path

from shoal.clusters.aws.file import AWS_NAME, AwsFile
from shoal.errors import ConfigError


def completed(spec: AwsFile, variables: Mapping[str, str] | None = None) -> AwsFile:
    """Returns a spec that says its region, and has a name that AWS takes.

    Args:
        spec: The file.
        variables: Name -> text; default None means those of this process.

    Raises:
        ConfigError: Nothing says a region, or the name of the file cannot be a stack's.

    Example:
        >>> import shoal.clusters.aws.file as file
        >>> spec = file.AwsFile.model_validate({
        ...     "name": "prod", "workers": {"type": "m5.large", "count": 1},
        ...     "access": {"ssh_from": ["me"]},
        ...     "limits": {"max_hours": 1, "budget_dollars": "none"},
        ... })
        >>> completed(spec, {"AWS_REGION": "eu-west-1"}).region
        'eu-west-1'
    """
    if not re.match(AWS_NAME, spec.name):
        raise ConfigError(
            f"a cluster on AWS cannot be called {spec.name!r}. Expected letters, "
            "digits and -, a letter first, at most 32. Give its file a `name`."
        )
    if spec.region:
        return spec
    found = os.environ if variables is None else variables
    profile = spec.profile or found.get("AWS_PROFILE") or "default"
    region = (
        (None if spec.profile else found.get("AWS_REGION"))
        or (None if spec.profile else found.get("AWS_DEFAULT_REGION"))
        or _of_profile(profile, found.get("AWS_CONFIG_FILE", "~/.aws/config"))
    )
    if not region:
        raise ConfigError(
            f"cluster {spec.name} has no region: neither its file, nor AWS_REGION, nor "
            f"the profile {profile!r} says one. Expected a region, such as us-east-1. "
            "Write `region: us-east-1` to the file."
        )
    return spec.model_copy(update={"region": region})


def _of_profile(name: str, path: str) -> str | None:
    """Returns the region of a profile in the AWS configuration."""
    read = configparser.ConfigParser(interpolation=None)
    try:
        read.read(Path(path).expanduser(), encoding="utf-8")
    except (OSError, UnicodeDecodeError, configparser.Error):
        return None
    section = name if name == "default" else f"profile {name}"
    return read.get(section, "region", fallback=None)
