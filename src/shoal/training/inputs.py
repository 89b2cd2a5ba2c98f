"""What a run is made of, kept beside it until it has ended well: `resume` needs it.

This file decides what is kept and how it is read again: the model as it was sent to
workers, the samples as workers see them, the plan and the callbacks. A run folder
is as trusted as a program: reading it runs code.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, final

import cloudpickle
import numpy as np

from shoal.data import ArraySource, Source
from shoal.data.chunks import ChunkedSource
from shoal.errors import CheckpointError
from shoal.models.pickling import dumps, loads
from shoal.plan import Plan
from shoal.runs.checkpoint_files import (
    Damage,
    Part,
    check_size,
    read_part,
    read_whole,
    write_part,
    write_whole,
)
from shoal.runs.folder import Folder
from shoal.training.callback_state import pack_callbacks, unpack_callbacks
from shoal.training.likeness import Likeness
from shoal.training.validation import Validation

INPUTS = "inputs"
INDEX = "inputs.pickle"
MOST_DATA_BYTES = 1 << 30
FORMAT = 1
SEAL = b"shoal inputs sha256 "
"""Begins the index, before its checksum. In older runs there is neither."""
PICKLE = b"\x80"
"""Begins what was pickled."""


@final
@dataclass(frozen=True, kw_only=True)
class Inputs:
    """All that a run began with.

    Args:
        plan: Of the run, with the request it came from and the seed that was drawn.
        packed: The model as `travel.pack` made it.
        source: The samples; None where they are too many to be kept. Of what is read
            in chunks only names and sizes are.
        validation: What the model is validated on.
        callbacks: None where they could not be kept.
        settings: Other arguments of `fit`, by name.
        scoring: Batch size and steps of a validation.
        likeness: To know the samples again; None in the folders of older runs.
    """

    plan: Plan
    packed: bytes
    source: Source | None
    validation: Validation | None
    callbacks: Sequence[Any] | None
    settings: dict[str, Any]
    scoring: tuple[int, int | None] = (0, None)
    likeness: Likeness | None = None


@dataclass(frozen=True, kw_only=True)
class _Index:
    """What is written last; a run without it cannot be resumed."""

    format: int
    inputs: Inputs
    callbacks: bytes | None
    data: Part | None
    held: Part | None
    chunks: bytes | None = None
    held_chunks: bytes | None = None


def write_inputs(folder: Folder, inputs: Inputs) -> None:
    """Keeps them; whole when this returns.

    Args:
        folder: Of the run.
        inputs: To keep. Samples beyond 1 GiB are left out.

    Raises:
        OSError: The storage is full or away.
        CheckpointError: Something of the user's cannot be pickled.
    """
    place = folder.child(INPUTS)
    source, validation = inputs.source, inputs.validation
    data = held = None
    beside = None if validation is None else validation.source
    chunks, held_chunks = _packed(source), _packed(beside)
    if isinstance(source, ArraySource) and source.size_bytes <= MOST_DATA_BYTES:
        data = write_part(place, "data.bin", memoryview(source.to_blob()))
    if isinstance(beside, ArraySource) and beside.size_bytes <= MOST_DATA_BYTES:
        held = write_part(place, "validation.bin", memoryview(beside.to_blob()))
    index = _Index(
        format=FORMAT,
        inputs=replace(inputs, source=None, validation=None, callbacks=None),
        callbacks=pack_callbacks(inputs.callbacks or []),
        data=data,
        held=held,
        chunks=chunks,
        held_chunks=held_chunks,
    )
    try:
        content = cloudpickle.dumps(index)
    except Exception as error:  # whatever __reduce__ of the user's raises
        raise CheckpointError(
            f"this run cannot be resumed: {type(error).__name__}: {error}. "
            "Expected a strategy and arguments that can be pickled. "
            "Training goes on; keep the model with a ModelCheckpoint callback."
        ) from error
    write_whole(place, INDEX, _sealed(content))


def _packed(source: Source | None) -> bytes | None:
    """A source that is read in chunks, None of others and where it cannot be packed."""
    if isinstance(source, ChunkedSource) and source.travels_alone:
        with suppress(Exception):  # whatever code of the user's raises
            return dumps(source)
    return None


def read_inputs(folder: Folder) -> Inputs:
    """Reads what `write_inputs` kept.

    Raises:
        CheckpointError: It was not kept, or is damaged.
        OSError: The storage is away.
    """
    place = folder.child(INPUTS)
    if not place.exists(INDEX):
        raise CheckpointError(
            f"the run {folder.name!r} cannot be resumed: what it began with is not in "
            f"{place.url}. Expected a run that was broken off, by fit on processes, "
            "with checkpoints. Start it again with fit."
        )
    try:
        index: _Index = pickle.loads(_unsealed(read_whole(place, INDEX)))
        data: Source | None = None if index.data is None else _read(place, index.data)
        if index.chunks is not None:
            data = loads(index.chunks)
        held: Any = None if index.held is None else _read(place, index.held)
        if index.held_chunks is not None:
            held = loads(index.held_chunks)
    except OSError:
        raise
    except Exception as error:  # a class that is gone, or bytes that are others
        raise CheckpointError(
            f"what the run {folder.name!r} began with cannot be read from "
            f"{place.url} ({type(error).__name__}: {error}). Expected the files as "
            "they were written, and every module they name. "
            "Put the modules on PYTHONPATH, or start the run again."
        ) from error
    validation = None
    if held is not None:
        batch_size, steps = index.inputs.scoring
        validation = Validation(source=held, batch_size=batch_size, steps=steps)
    callbacks = None if index.callbacks is None else unpack_callbacks(index.callbacks)
    return replace(
        _with_request(index.inputs),
        source=data,
        validation=validation,
        callbacks=callbacks,
    )


def _with_request(inputs: Inputs) -> Inputs:
    """Inputs whose plan has its request.

    Older runs kept the request beside the plan, which had copies of its options.
    """
    held = vars(inputs.plan)
    if "request" in held:
        return inputs
    own = {f.name: held[f.name] for f in fields(Plan) if f.name in held}
    return replace(inputs, plan=Plan(request=vars(inputs)["request"], **own))


def _sealed(content: bytes) -> bytes:
    digest = hashlib.sha256(content).hexdigest().encode()
    return SEAL + digest + b"\n" + content


def _unsealed(found: bytes) -> bytes:
    """What was sealed. It is checked before any of it is unpickled."""
    if found.startswith(PICKLE):
        return found  # of a run from before there was a seal
    content = found.partition(b"\n")[2]
    if _sealed(content) != found:
        raise ValueError(f"{INDEX} is cut off or was changed")
    return content


def _read(place: Folder, part: Part) -> ArraySource:
    try:
        check_size(place, part)
        content = np.empty(part.size_bytes, np.uint8)
        read_part(place, part, content.data)
    except Damage as damage:
        raise ValueError(str(damage)) from damage
    return ArraySource.from_blob(content.data)
