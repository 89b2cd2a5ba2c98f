"""Folders of images, one folder a class: `train/cat/1.jpg`, `train/dog/2.jpg`.

Images are RGB, as Keras' `image_dataset_from_directory` has them, but stay bytes
(uint8): a quarter of the memory; scale them in the model with a `Rescaling` layer.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt

from shoal.data.files.format import Columns, Format, Part
from shoal.data.files.libraries import library
from shoal.data.files.refusals import reading
from shoal.data.files.store import FileEntry, Store
from shoal.errors import DataError

FETCHED = 64
"""Number of files that are fetched at once."""


@final
@dataclass(frozen=True, kw_only=True)
class Images(Format):
    """Reads images as arrays (height, width, 3); classes are numbered by name.

    Args:
        image_size: (height, width) to resize to, bilinear; None: all must have one
            size.
        classes: Names of the folders, sorted; a label is an index into them.
        is_checked: Whether every image is decoded once when data is opened. Otherwise
            opening costs nothing, and a damaged image is found when it is read.

    Example:
        >>> Images(image_size=(32, 32)).parts_per_chunk
        256
    """

    kind = "images"
    extensions = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
    parts_per_chunk = 256
    features = "image"
    label = "class"

    image_size: tuple[int, int] | None = None
    classes: tuple[str, ...] = ()
    is_checked: bool = False

    @property
    def opens_to_count(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether files are opened: only if damaged ones must be known beforehand."""
        return self.is_checked

    def begin(self, files: Sequence[FileEntry]) -> Format:
        """Finds the classes: names of the folders that hold images."""
        folders = sorted({_folder(file) for file in files})
        classes = sorted({folder.rpartition("/")[2] for folder in folders})
        if len(classes) < len(folders):
            twice = next(
                name for name in classes if sum(_is_in(f, name) for f in folders) > 1
            )
            shown = ", ".join([f for f in folders if _is_in(f, twice)][:3])
            raise DataError(
                f"class {twice!r} has several folders: {shown}. Expected one folder "
                "for each class, named after it. Give the folder above the classes, "
                "for example .../train/."
            )
        return replace(self, classes=tuple(classes))

    def misplaced(self, files: Sequence[FileEntry]) -> dict[str, DataError]:
        """Returns images beside the folders of classes: they have no class."""
        above: set[str] = set()
        for folder in {_folder(file) for file in files}:
            while (folder := folder.rpartition("/")[0]) and folder not in above:
                above.add(folder)
        return {
            file.url: DataError(
                f"{file.url} lies beside folders of images. Expected every image in "
                "the folder of its class. Move it there or away, or pass "
                "on_bad_file='skip' to leave it out."
            )
            for file in files
            if _folder(file) in above
        }

    def names(self, file: FileEntry, store: Store) -> tuple[str, ...]:
        """Returns the columns: an image and its class."""
        return ("image", "class")

    def count(
        self, file: FileEntry, store: Store, columns: Sequence[str]
    ) -> tuple[Part, ...]:
        """Counts one row each; decodes the image if asked to."""
        if "class" in columns and len(self.classes) == 1:
            raise DataError(
                f"all images lie in one folder: {_folder(file)}. Expected one folder "
                "for each class. Give the folder above the classes, or label=() for "
                "images without classes."
            )
        if not self.is_checked:
            return (Part(file=file, rows=1),)
        with reading(file.url, "image"):
            shape = self._decode(store.read(file), file).shape
        return (Part(file=file, rows=1, types=(("image", f"uint8 {shape}"),)),)

    def read(self, part: Part, store: Store, columns: Sequence[str]) -> Columns:
        """Reads one image."""
        return next(iter(self.read_parts([part], store, columns)))

    def read_parts(
        self, parts: Sequence[Part], store: Store, columns: Sequence[str]
    ) -> Iterator[Columns]:
        """Fetches files together, and decodes them one by one."""
        for start in range(0, len(parts), FETCHED):
            some = parts[start : start + FETCHED]
            with reading(some[0].file.url, "image"):
                found = store.read_all([part.file for part in some])
            for part, data in zip(some, found, strict=True):
                with reading(part.file.url, "image"):
                    if isinstance(data, Exception):
                        raise data
                    image = self._decode(data, part.file)
                label = self.classes.index(_folder(part.file).rpartition("/")[2])
                yield {"image": image[None], "class": np.array([label], np.int32)}

    def _decode(self, data: bytes, file: FileEntry) -> npt.NDArray[Any]:
        pillow = library("PIL.Image", "images")
        with pillow.open(io.BytesIO(data)) as image:
            if image.mode.startswith(("I", "F")):
                raise DataError(
                    f"{file.url} has pixels of mode {image.mode!r}. Expected 8 bits a "
                    "channel. Convert it, or decode such images in preprocess=."
                )
            found = image.convert("RGB")
        if self.image_size is not None:
            height, width = self.image_size
            found = found.resize((width, height), pillow.Resampling.BILINEAR)
        return np.asarray(found)


def _folder(file: FileEntry) -> str:
    return file.url.rpartition("/")[0]


def _is_in(folder: str, name: str) -> bool:
    return folder.rpartition("/")[2] == name
