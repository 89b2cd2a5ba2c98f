"""Turns text files of labelled lines into arrays; found by its name."""

import numpy as np

LENGTH = 40
"""Characters of a line the network sees."""
ALPHABET = 129
"""ASCII, and 0 for the end of a line."""
NUMBERS = 2


class Preprocessing:
    """Reads lines of the form `label<TAB>text`."""

    def preprocess(self, keys, objects):
        """Returns (inputs, outputs, train_size) of the files of one chunk."""
        labels, texts = [], []
        for stream in objects:
            for line in stream.read().decode().splitlines():
                label, _, text = line.partition("\t")
                labels.append(float(label))
                texts.append(text)
        codes = np.zeros((len(texts), LENGTH), "int32")
        for row, text in zip(codes, texts, strict=True):
            shown = text.strip().encode("ascii", "replace")[:LENGTH]
            row[: len(shown)] = np.frombuffer(shown, "uint8") + 1
        lengths = [len(text) / 100 for text in texts]
        indents = [(len(text) - len(text.lstrip())) / 10 for text in texts]
        numbers = np.array([lengths, indents], "float32").T
        inputs = {"characters": codes, "numbers": numbers}
        return inputs, np.array(labels, "float32")[:, None], len(texts)
