"""Tensors of torch that act as if they lay on a GPU: NumPy cannot read them.

What runs here on CPUs alone runs on CUDA too only if it copies tensors to the host
first. Keras' own conversion does; its calls are let through.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

KERAS = "keras/src/"
REFUSED = (
    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
    "tensor to host memory first."
)


@contextmanager
def tensors_on_a_device() -> Generator[None]:
    """Context in which only tensors that `.cpu()` returned become arrays."""
    import torch

    plain = {
        name: getattr(torch.Tensor, name) for name in ("cpu", "numpy", "__array__")
    }

    def cpu(tensor: Any, *a: Any, **k: Any) -> Any:
        found = plain["cpu"](tensor, *a, **k).view_as(tensor)  # never the same object
        found.is_on_host = True
        return found

    def reading(name: str) -> Any:
        def read(tensor: Any, *a: Any, **k: Any) -> Any:
            caller = sys._getframe(1).f_code.co_filename
            is_theirs = KERAS in caller or "/torch/" in caller
            if not is_theirs and not getattr(tensor, "is_on_host", False):
                raise TypeError(REFUSED)
            return plain[name](tensor, *a, **k)

        return read

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "cpu", cpu)
        patch.setattr(torch.Tensor, "numpy", reading("numpy"))
        patch.setattr(torch.Tensor, "__array__", reading("__array__"))
        yield
