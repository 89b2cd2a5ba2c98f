"""What the name of an instance type says about it. Pure."""

from __future__ import annotations

import re

_FAMILY = re.compile(r"^([a-z]+)(\d*)([a-z-]*)$")
NVIDIA = ("g", "gr", "p")
QUOTAS = {
    "standard": ("L-1216C47A", "Running On-Demand Standard instances"),
    "g": ("L-DB2E81BA", "Running On-Demand G and VT instances"),
    "p": ("L-417A185B", "Running On-Demand P instances"),
}
"""Quota of a family: its code and its name; they count vCPUs."""


def has_gpu(name: str) -> bool:
    """Tells whether a type has GPUs of NVIDIA.

    Example:
        >>> has_gpu("g5.2xlarge"), has_gpu("m6g.large"), has_gpu("g4ad.xlarge")
        (True, False, False)
    """
    letters, _, more = _parts(name)
    return letters in NVIDIA and "a" not in more


def architecture(name: str) -> str:
    """Returns the processor architecture of a type.

    Example:
        >>> [architecture(name) for name in ("m6g.large", "g5.xlarge", "g5g.xlarge")]
        ['arm64', 'x86_64', 'arm64']
    """
    letters, _, more = _parts(name)
    return "arm64" if "g" in more or letters == "a" else "x86_64"


def quota_of(name: str) -> str:
    """Returns the key in `QUOTAS` for a type; "" for a family without a known one.

    Example:
        >>> quota_of("g5.2xlarge"), quota_of("m5.large"), quota_of("trn1.2xlarge")
        ('g', 'standard', '')
    """
    letters, _, _ = _parts(name)
    if letters in ("g", "gr", "vt"):
        return "g"
    if letters == "p":
        return "p"
    return (
        "standard" if letters in ("a", "c", "d", "h", "i", "m", "r", "t", "z") else ""
    )


def has_placement(name: str) -> bool:
    """Tells whether a type can be in a cluster placement group.

    Example:
        >>> has_placement("g5.2xlarge"), has_placement("t3.large")
        (True, False)
    """
    letters, _, _ = _parts(name)
    return letters not in ("t", "mac")


def has_efa(name: str) -> bool:
    """Tells whether a type is known to have an Elastic Fabric Adapter.

    Example:
        >>> has_efa("p4d.24xlarge"), has_efa("g5.48xlarge"), has_efa("m5.xlarge")
        (True, True, False)
    """
    return name in (
        "c5n.18xlarge", "g4dn.12xlarge", "g4dn.16xlarge", "g5.8xlarge", "g5.12xlarge",
        "g5.16xlarge", "g5.24xlarge", "g5.48xlarge", "g6.8xlarge", "g6.12xlarge",
        "g6.16xlarge", "g6.24xlarge", "g6.48xlarge", "m5dn.24xlarge", "m5n.24xlarge",
        "p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge",
    )  # fmt: skip


def _parts(name: str) -> tuple[str, str, str]:
    """Returns letters, generation and further letters of a type's family."""
    found = _FAMILY.match(name.partition(".")[0])
    return found.groups() if found else (name, "", "")  # pyright: ignore[reportReturnType]
