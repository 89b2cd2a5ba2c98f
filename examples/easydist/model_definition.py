"""Tells Python from prose, line by line: an LSTM with two inputs, on files in a bucket.

The script is what a user of EasyDist writes: a Keras model for one machine, and an
`ExecutionEnvironment`. Data: make_data.py. Reading them: preprocessing.py.
"""

import os

import keras
from preprocessing import ALPHABET, LENGTH, NUMBERS

from shoal.easydist import ExecutionEnvironment

characters = keras.Input((LENGTH,), dtype="int32", name="characters")
numbers = keras.Input((NUMBERS,), name="numbers")
text = keras.layers.Embedding(ALPHABET, 16)(characters)
text = keras.layers.LSTM(32)(text)
both = keras.layers.Concatenate()([text, numbers])
both = keras.layers.Dense(16, activation="relu")(both)
is_python = keras.layers.Dense(1, activation="sigmoid", name="is_python")(both)

inputs = {"characters": characters, "numbers": numbers}
model = keras.Model(inputs, is_python, name="python_or_prose")
model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])

ExecutionEnvironment(
    bucket=os.environ.get("EASYDIST_BUCKET", "shoal-easydist"),
    prefix=os.environ.get("EASYDIST_PREFIX", "text"),
    epochs=int(os.environ.get("EASYDIST_EPOCHS", "3")),
    batch_size=32,
    opt=keras.optimizers.Adam(3e-3),
).fit()
