"""A wheel of Shoal as it is installed here, changes under development included.

It is made of the package's files and the metadata of its installation: no index and no
build tool is needed, and every host runs exactly the code of this machine.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
WHEEL = (
    "Wheel-Version: 1.0\nGenerator: shoal\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
)
DATE = (2020, 1, 1, 0, 0, 0)


def wheel_name() -> str:
    """Returns the file's name."""
    return f"shoal-{metadata.version('shoal')}-py3-none-any.whl"


def build_wheel() -> bytes:
    """Returns the file's contents: the same for the same code."""
    paths = sorted(p for p in PACKAGE.rglob("*") if p.is_file() and p.suffix != ".pyc")
    files = {
        f"shoal/{p.relative_to(PACKAGE).as_posix()}": p.read_bytes() for p in paths
    }
    about = f"shoal-{metadata.version('shoal')}.dist-info"
    files |= {
        f"{about}/{name}": text.encode() for name, text in _about().items() if text
    }
    lines = [
        f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()
    ]
    files[f"{about}/RECORD"] = "\n".join([*lines, f"{about}/RECORD,,", ""]).encode()
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, DATE), data, zipfile.ZIP_DEFLATED)
    return held.getvalue()


def _about() -> dict[str, str]:
    installed = metadata.distribution("shoal")
    return {
        "METADATA": installed.read_text("METADATA") or "",
        "entry_points.txt": installed.read_text("entry_points.txt") or "",
        "WHEEL": WHEEL,
    }


def _digest(data: bytes) -> str:
    digest = hashlib.sha256(data).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
