"""The inputs of a run, kept beside it until it has ended well, for `resume`.

This file decides what is kept and how it is read again: the model as it was sent to
workers, the samples as workers see them, the plan and the callbacks. Reading a run
folder runs code from it.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
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
"""Prefix of the index, before its checksum. Older runs have neither."""
PICKLE = b"\x80"
"""Prefix of pickled content."""
_RENAMED = {"gang_batch_size": "global_batch_size"}
"""Fields of plans of older runs, and their names today."""


@final
@dataclass(frozen=True, kw_only=True)
class Inputs:
    """All inputs of a run.

    Args:
        plan: Plan of the run, with its request and the seed that was drawn.
        packed: The model from `travel.pack`.
        source: The samples; None if they are too many to keep. For chunked sources only
            names and sizes are kept.
        validation: Validation data.
        callbacks: Callbacks, None if they could not be kept.
        settings: Other arguments of `fit`, by name.
        scoring: Batch size and steps of a validation.
        likeness: Digests to recognise the samples; None in the folders of older runs.
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
    """The part that is written last; a run without it cannot be resumed."""

    format: int
    inputs: Inputs
    callbacks: bytes | None
    data: Part | None
    held: Part | None
    chunks: bytes | None = None
    held_chunks: bytes | None = None


@contextmanager
def left_for_resume(source: Any, validation: Validation | None) -> Generator[None]:
    """Context of a run that can be resumed: what was written for it stays till then.

    Args:
        source: The samples.
        validation: Validation data.
    """
    held = None if validation is None else validation.source
    try:
        yield
    except BaseException:
        for one in (source, held):
            if isinstance(one, ChunkedSource):
                one.leave()
        raise


def write_inputs(folder: Folder, inputs: Inputs) -> None:
    """Writes the inputs; they are complete when this returns.

    Args:
        folder: Folder of the run.
        inputs: Inputs. Samples beyond 1 GiB are left out.

    Raises:
        OSError: The storage is full or cannot be reached.
        CheckpointError: An object of the user's cannot be pickled.
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
    except Exception as error:  # a user's __reduce__ may raise anything
        raise CheckpointError(
            f"this run cannot be resumed: {type(error).__name__}: {error}. "
            "Expected a strategy and arguments that can be pickled. "
            "Training goes on; keep the model with a ModelCheckpoint callback."
        ) from error
    write_whole(place, INDEX, _sealed(content))


def _packed(source: Source | None) -> bytes | None:
    """Packs a chunked source; None for others, and if it cannot be packed."""
    if isinstance(source, ChunkedSource) and source.travels_alone:
        with suppress(Exception):  # the user's code may raise anything
            return dumps(source)
    return None


def read_inputs(folder: Folder) -> Inputs:
    """Reads the output of `write_inputs`.

    Raises:
        CheckpointError: It does not exist, or is damaged.
        OSError: The storage cannot be reached.
    """
    place = folder.child(INPUTS)
    if not place.exists(INDEX):
        raise CheckpointError(
            f"the run {folder.name!r} cannot be resumed: its model and settings are "
            f"not in {place.url}. Expected a run that was interrupted, by fit on "
            "processes, with checkpoints. Start it again with fit."
        )
    try:
        index: _Index = pickle.loads(_unsealed(read_whole(place, INDEX)))
        data: Source | None = None if index.data is None else _read(place, index.data)
        if index.chunks is not None:
            data = loads(index.chunks)
        held: Any = None if index.held is None else _read(place, index.held)
        if index.held_chunks is not None:
            held = loads(index.held_chunks)
        inputs = _with_request(index.inputs)
    except OSError:
        raise
    except Exception as error:  # a missing class, or damaged bytes
        raise CheckpointError(
            f"model and settings of the run {folder.name!r} cannot be read from "
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
        inputs,
        source=data,
        validation=validation,
        callbacks=callbacks,
    )


def _with_request(inputs: Inputs) -> Inputs:
    """Inputs whose plan has the fields of today.

    Older runs kept the request beside the plan, which had copies of its options, and
    had other names.
    """
    held = {_RENAMED.get(name, name): v for name, v in vars(inputs.plan).items()}
    held = {"request": vars(inputs).get("request"), **held}
    names = [field.name for field in fields(Plan) if field.name in held]
    own: dict[str, Any] = {name: held[name] for name in names}
    return replace(inputs, plan=Plan(**own))


def _sealed(content: bytes) -> bytes:
    digest = hashlib.sha256(content).hexdigest().encode()
    return SEAL + digest + b"\n" + content


def _unsealed(found: bytes) -> bytes:
    """Returns sealed content, verified before any of it is unpickled."""
    if found.startswith(PICKLE):
        return found  # a run from before seals existed
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
