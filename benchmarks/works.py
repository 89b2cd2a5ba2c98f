"""Works of the contests: models and samples, the same for all participants.

Keras is imported only to make a model: the environment of a contestant may be without.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".benchmarks"
IMAGES, LENGTH, ALPHABET = 6_400, 40, 129
EVENTS = 18_000


def higgs(rows: int) -> tuple[Any, Any]:
    """Random samples of the shape of the Higgs data, which a model can learn."""
    x = np.random.default_rng(0).standard_normal((rows, 30)).astype("f4")
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype("i4")


def events(rows: int) -> tuple[Any, Any]:
    """The first events of the Higgs data, and whether each is signal.

    They are read once from $SHOAL_DATA; columns get mean 0 and deviation 1, what is
    missing is 0.
    """
    x, y = _all_events()
    return x[:rows], y[:rows]


def _events_held_back() -> tuple[Any, Any]:
    x, y = _all_events()
    return x[EVENTS:], y[EVENTS:]


def _nothing_held_back() -> tuple[Any, Any]:
    raise ValueError("this work has no samples to validate with; `events` has some")


def _all_events() -> tuple[Any, Any]:
    kept = CACHE / "events.npz"
    if not kept.exists():
        from tests.datasets import read_higgs

        table = read_higgs(given_file("atlas_higgs_22889.csv.gz"))
        kept.parent.mkdir(exist_ok=True)
        np.savez(kept, x=table.x, y=table.y)
    with np.load(kept) as found:
        return found["x"], found["y"]


def given_file(name: str) -> Path:
    """A file of $SHOAL_DATA."""
    file = Path(os.environ.get("SHOAL_DATA", "")) / name
    if not file.is_file():
        sys.exit(f"There is no {file}. Set SHOAL_DATA to the folder that has it.")
    return file


def images(rows: int) -> tuple[Any, Any]:
    """The first images of CIFAR-10 in a random order, uint8, and their classes.

    They are read once from $SHOAL_DATA, and kept beside the benchmarks.
    """
    kept = CACHE / "cifar10.npz"
    if not kept.exists():
        _read_images(kept)
    with np.load(kept) as found:
        return found["x"][:rows], found["y"][:rows]


def _read_images(kept: Path) -> None:
    import io

    from PIL import Image

    with zipfile.ZipFile(given_file("cifar10_20k_jpg.zip")) as files:
        names = [n for n in files.namelist() if "train/" in n and n.endswith(".jpg")]
        classes = sorted({Path(name).parent.name for name in names})
        order = np.random.default_rng(0).permutation(len(names))[:IMAGES]
        chosen = [names[place] for place in order]
        x = [np.asarray(Image.open(io.BytesIO(files.read(n)))) for n in chosen]
        y = [classes.index(Path(name).parent.name) for name in chosen]
    kept.parent.mkdir(exist_ok=True)
    np.savez(kept, x=np.stack(x), y=np.array(y, "i4"))


def text(rows: int) -> tuple[Any, Any]:
    """Lines of this repository's Python and prose as character codes; which is which.

    There are some thousand of them, in turn as often as rows are asked for.
    """
    sys.path.insert(0, str(ROOT / "examples" / "easydist"))
    from make_data import lines_of  # pyright: ignore[reportMissingImports]

    found: list[tuple[str, int]] = []
    for ending, label in ((".py", 1), (".md", 0)):
        found += [(line, label) for line in lines_of(ROOT, ending)]
    chosen = np.random.default_rng(0).integers(0, len(found), rows)
    codes = np.zeros((rows, LENGTH), "i4")
    for row, place in zip(codes, chosen, strict=True):
        shown = found[place][0].strip().encode("ascii", "replace")[:LENGTH]
        row[: len(shown)] = np.frombuffer(shown, "u1") + 1
    numbers = np.array(
        [(len(found[at][0]) / 100, found[at][0].count(" ") / 10) for at in chosen], "f4"
    )
    labels = np.array([found[place][1] for place in chosen], "f4")[:, None]
    return {"characters": codes, "numbers": numbers}, labels


def _perceptron() -> Any:
    """A perceptron 30-600-600-2 with dropout 0.2."""
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((30,)),
            layers.Dense(600, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(600, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(2, activation="softmax"),
        ]
    )


def _wide() -> Any:
    """A perceptron 30-1720-1720-1720-2: 6 million weights."""
    import keras

    layers = keras.layers
    hidden = [layers.Dense(1720, activation="relu") for _ in range(3)]
    return keras.Sequential(
        [keras.Input((30,)), *hidden, layers.Dense(2, activation="softmax")]
    )


def _resnet() -> Any:
    """Three blocks of two convolutions, as in the example of image folders."""
    from examples.image_folder import make_model

    return make_model()


def _lstm() -> Any:
    """An LSTM over characters, with numbers beside them: EasyDist's example."""
    import keras

    layers = keras.layers
    characters = keras.Input((LENGTH,), dtype="int32", name="characters")
    numbers = keras.Input((2,), name="numbers")
    told = layers.LSTM(32)(layers.Embedding(ALPHABET, 16)(characters))
    both = layers.Concatenate()([told, numbers])
    answer = layers.Dense(1, activation="sigmoid")(
        layers.Dense(16, activation="relu")(both)
    )
    return keras.Model({"characters": characters, "numbers": numbers}, answer)


def _characters(rows: int) -> tuple[Any, Any]:
    """The characters of the text alone."""
    x, y = text(rows)
    return x["characters"], y


def _transformer() -> Any:
    """Two blocks of attention over characters, 128 wide."""
    import keras

    layers, width = keras.layers, 128
    characters = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(ALPHABET, width)(characters)
    for _ in range(2):
        beside = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, width // 4)(beside, beside)
        beside = layers.Dense(4 * width, activation="gelu")(
            layers.LayerNormalization()(x)
        )
        x = x + layers.Dense(width)(beside)
    told = layers.GlobalAveragePooling1D()(x)
    return keras.Model(characters, layers.Dense(1, activation="sigmoid")(told))


@dataclass(frozen=True)
class Work:
    """Data and a model.

    Args:
        rows: Rows of an epoch by default.
        samples: Rows -> (x, y).
        model: Makes the model.
        optimizer: Name of Keras' optimizer.
        loss: Name of Keras' loss.
        held_back: Makes samples to validate with.
        learning_rate: Learning rate, None for the optimizer's default.
    """

    rows: int
    samples: Callable[[int], tuple[Any, Any]]
    model: Callable[[], Any]
    optimizer: str
    loss: str
    held_back: Callable[[], tuple[Any, Any]] = _nothing_held_back
    learning_rate: float | None = None

    def make(self, steps_per_execution: int = 1) -> Any:
        """Returns the model, compiled."""
        model = self.model()
        model.compile(
            self.optimizer,
            self.loss,
            metrics=["accuracy"],
            steps_per_execution=steps_per_execution,
        )
        if self.learning_rate is not None:
            model.optimizer.learning_rate = self.learning_rate
        return model


_CLASSES = "sparse_categorical_crossentropy"
WORKS = {
    "higgs": Work(128_000, higgs, _perceptron, "adagrad", _CLASSES),
    "events": Work(
        EVENTS, events, _perceptron, "adagrad", _CLASSES, _events_held_back, 0.01
    ),
    "wide": Work(96_000, higgs, _wide, "sgd", _CLASSES),
    "images": Work(IMAGES, images, _resnet, "sgd", _CLASSES),
    "transformer": Work(
        25_600, _characters, _transformer, "adam", "binary_crossentropy"
    ),
    "text": Work(25_600, text, _lstm, "adam", "binary_crossentropy"),
}
