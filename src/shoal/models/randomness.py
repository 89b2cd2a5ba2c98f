"""Preserves random state around code that only inspects a model."""

from __future__ import annotations

import random
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

import numpy as np


@contextmanager
def random_state_kept() -> Generator[None]:
    """Context that restores the random state and name counters that code changes."""
    state = import_module("keras.src.backend.common.global_state")
    generator = state.get_global_attribute("global_seed_generator")
    seed = None if generator is None else generator.state.numpy()
    counters = state.get_global_attribute("object_name_uids")
    names = dict(counters or {})
    python, numpy = random.getstate(), np.random.get_state()
    eager = _eager_generator()
    drawn = None if eager is None else eager.getstate()
    try:
        with _torch_undisturbed():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if eager is not None:
            eager.setstate(drawn)
        if counters is not None:
            counters.clear()
            counters.update(names)
        if generator is None:
            state.set_global_attribute("global_seed_generator", None)
        else:
            generator.state.assign(seed)


def _torch_undisturbed() -> Any:
    """Does the same for torch's generators, if a program has loaded torch."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "random"):
        return nullcontext()
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return torch.random.fork_rng([torch.cuda.current_device()] if on_gpu else [])


def _eager_generator() -> Any:
    """Returns TensorFlow's source of operation seeds, None if it is not loaded."""
    context: Any = sys.modules.get("tensorflow.python.eager.context")
    found = None if context is None else getattr(context.context(), "_rng", None)
    return found if isinstance(found, random.Random) else None
