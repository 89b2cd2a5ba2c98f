"""Trains a small ResNet on a folder of images, one folder a class, here or in a bucket.

Run: python examples/image_folder.py s3://bucket/train/ s3://bucket/test/
     (or two folders of this machine; `--strategy aeasgd`, `--epochs 8`)
"""

from __future__ import annotations

import argparse
from typing import Any

import keras

import shoal

CLASSES, SIZE = 10, 32


def make_model(rate: float = 0.1) -> keras.Model:
    """A ResNet of three blocks; images come as bytes and are scaled in the model."""
    layers = keras.layers

    def block(x: Any, filters: int, stride: int) -> Any:
        beside = layers.Conv2D(filters, 1, stride, use_bias=False)(x)
        for step in (stride, 1):
            x = layers.Conv2D(filters, 3, step, "same", use_bias=False)(x)
            x = layers.BatchNormalization(momentum=0.9)(x)
            x = layers.Activation("relu")(x)
        return layers.Add()([x, beside])

    images = keras.Input((SIZE, SIZE, 3), dtype="uint8")
    x = layers.Rescaling(1 / 127.5, offset=-1)(images)
    x = layers.Conv2D(16, 3, 1, "same", use_bias=False)(x)
    for filters, stride in ((16, 2), (32, 2), (64, 2)):
        x = block(x, filters, stride)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(images, layers.Dense(CLASSES, "softmax")(x))
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--strategy", default="all_reduce")
    parser.add_argument("--epochs", type=int, default=8)
    given = parser.parse_args()
    keras.utils.set_random_seed(1)
    history = shoal.fit(
        make_model(),
        given.train,
        validation_data=given.test,
        strategy=given.strategy,
        workers=2,
        batch_size=128,
        epochs=given.epochs,
        verbose=2,
    )
    print(f"accuracy on images it has not seen: {history.history['val_accuracy'][-1]}")


if __name__ == "__main__":
    main()
