"""Prevents Keras from importing TensorFlow when it is not needed.

To serialize any object Keras asks whether it is TensorFlow's, and imports TensorFlow
for that: three seconds on a machine that has both it and another backend.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def no_tensorflow() -> Generator[None]:
    """Context in which a TensorFlow that is not loaded counts as not installed.

    Example:
        >>> with no_tensorflow():
        ...     pass
    """
    module: Any = import_module("keras.src.utils.module_utils").tensorflow
    if "tensorflow" in sys.modules or getattr(module, "_available", True) is not None:
        yield
        return
    module._available = False
    try:
        yield
    finally:
        module._available = None
