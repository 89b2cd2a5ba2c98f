"""Manifests with a valid seal and any content: read, or said to be damaged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.errors import CheckpointError
from shoal.runs import checkpoint_manifest
from shoal.runs.checkpoint_files import Damage, Part
from shoal.runs.checkpoint_manifest import ArrayPart, CheckpointNumber, Manifest

PLACE = CheckpointNumber(generation=1, number=2)


def part(index: int, size_bytes: int) -> Part:
    return Part(
        name=PLACE.part("0a", 1, index), size_bytes=size_bytes, sha256="ab" * 32
    )


WHOLE: dict[str, Any] = json.loads(
    checkpoint_manifest.encode(
        Manifest(
            place=PLACE,
            document=part(0, 2),
            arrays={"center": ArrayPart(part=part(1, 8), dtype="<f4", shape=(2, 1))},
            blobs={"state": part(2, 0)},
        )
    ).splitlines()[1]
)

PATHS = [
    (), ("format",), ("place",), ("place", "generation"), ("place", "number"),
    ("document",), ("document", "name"), ("document", "size_bytes"),
    ("document", "sha256"), ("arrays",), ("arrays", "center"),
    ("arrays", "center", "part"), ("arrays", "center", "part", "size_bytes"),
    ("arrays", "center", "dtype"), ("arrays", "center", "shape"),
    ("arrays", "center", "shape", 1), ("blobs",), ("blobs", "state"),
    ("blobs", "state", "size_bytes"), ("blobs", "state", "name"),
]  # fmt: skip

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([10**400, -1, 1 << 63, 2.0, "2", "<f4", "O", "V8", "(2,)f4", ""])
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def changed(fields: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at one place."""
    if not path:
        return value
    found = list(fields) if isinstance(fields, list) else dict(fields)
    found[path[0]] = changed(found[path[0]], path[1:], value)
    return found


def read(body: bytes) -> Manifest | None:
    """What is made of it under a valid seal, None where it is refused as it should."""
    try:
        return checkpoint_manifest.decode(checkpoint_manifest._seal(body), PLACE)
    except (Damage, CheckpointError):
        return None


def is_sound(found: Manifest) -> bool:
    """Whether everything has its type: what follows asks no more."""
    parts = [
        type(p.size_bytes) is int
        and p.size_bytes >= 0
        and all(isinstance(text, str) for text in (p.name, p.sha256))
        for p in found.parts
    ]
    sizes = [type(n) is int for a in found.arrays.values() for n in a.shape]
    return all(parts) and all(sizes) and found.place == PLACE


def test_a_written_manifest_is_read() -> None:
    found = read(json.dumps(WHOLE).encode())
    assert found is not None
    assert is_sound(found)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
@settings(max_examples=60)
@given(value=values)
@example(value=[])
@example(value={})
@example(value=None)
@example(value=True)
@example(value=8.0)
@example(value="8")
def test_any_value_in_any_field_is_read_or_damage(
    path: tuple[Any, ...], value: Any
) -> None:
    found = read(json.dumps(changed(WHOLE, path, value)).encode())
    assert found is None or is_sound(found)


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_field_that_lacks_is_damage(name: str) -> None:
    fields = {key: value for key, value in WHOLE.items() if key != name}
    with pytest.raises(Damage):
        checkpoint_manifest.decode(
            checkpoint_manifest._seal(json.dumps(fields).encode()), PLACE
        )


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"[" * 200_000, b"9" * 5000, b'{"format": NaN}', b"\x00"],
    ids=["empty", "cut", "no UTF-8", "deep", "5,000 digits", "NaN", "no JSON"],
)
def test_a_manifest_that_is_no_json_is_damaged(body: bytes) -> None:
    with pytest.raises((Damage, CheckpointError)):
        checkpoint_manifest.decode(checkpoint_manifest._seal(body), PLACE)
