"""The template of a cluster as text: the package's file, filled for a user's. Pure.

CloudFormation has no loops, so lists are written in here: sources of SSH and tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

FOLDER = files("shoal.clusters.aws")
MOST_BYTES = 51_200
"""Size of a template that AWS takes in a call."""

_MARK = re.compile(r"^( *)# (SSH sources|tags of the user|user data)$", re.M)


def user_data() -> str:
    """Returns the boot script, without the lines that the template sets before it."""
    return (FOLDER / "user_data.sh").read_text(encoding="utf-8")


def template(sources: Sequence[str] = (), tags: Mapping[str, str] | None = None) -> str:
    """Returns the template.

    Args:
        sources: Ranges of addresses that may use SSH on the master.
        tags: The user's tags.
    """
    lines = {
        "SSH sources": _ingress(sources),
        "tags of the user": [
            f"- {{Key: {json.dumps(key)}, Value: {json.dumps(value)}}}"
            for key, value in (tags or {}).items()
        ],
        "user data": [
            line
            for line in user_data().splitlines()
            if not line.lstrip().startswith("# ")  # there is little room
        ],
    }

    def filled(mark: re.Match[str]) -> str:
        indent, name = mark.groups()
        return "\n".join(f"{indent}{line}".rstrip() for line in lines[name])

    text = (FOLDER / "template.yaml").read_text(encoding="utf-8")
    return re.sub(r"\n{3,}", "\n\n", _MARK.sub(filled, text))


def _ingress(sources: Sequence[str]) -> list[str]:
    """Returns the resources that let ranges of addresses in."""
    lines: list[str] = []
    for number, source in enumerate(sources, 1):
        kind = "CidrIpv6" if ":" in source else "CidrIp"
        lines += [
            f"SshFrom{number}:",
            "  Type: AWS::EC2::SecurityGroupIngress",
            "  Properties:",
            "    GroupId: !GetAtt Entrance.GroupId",
            "    IpProtocol: tcp",
            "    FromPort: 22",
            "    ToPort: 22",
            f"    {kind}: {json.dumps(source)}",
            "    Description: SSH from a stated address",
        ]
    return lines
