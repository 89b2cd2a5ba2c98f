"""One file for each compute backend; no other package imports one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

_SPLASH = "jax.experimental.pallas.ops.tpu.splash_attention"


@final
@dataclass(frozen=True, kw_only=True)
class BackendEntry:
    """Facts about a backend that are known before any of it is imported.

    Args:
        target: "module:class", which only workers import.
        unused: Modules that Keras imports if it can and no worker needs: a third of its
            import time.
        later: Modules that Keras and the backend import and few programs need.
        environment: Variables of workers; the user's own values win.
        gpu_parts: "package/path" of files, one of which is there where the backend
            can compute on a GPU, each with the text that it then contains.
        gpu_environment: Like `environment`, for workers on a GPU; "{share}" stands for
            the share of its memory that a worker may take.
        group: "module:function" that forms a group of workers; empty if the backend
            has none, and `no_group` gives the reason.
        has_nccl: Whether groups can reduce in the memory of GPUs.
    """

    target: str
    unused: tuple[str, ...] = ("matplotlib", "pandas", "requests", "IPython")
    later: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    gpu_parts: tuple[tuple[str, str], ...] = ()
    gpu_environment: Mapping[str, str] = field(default_factory=dict[str, str])
    group: str = ""
    has_nccl: bool = False
    no_group: str = ""


BACKENDS = {
    "jax": BackendEntry(
        target="shoal.backends.jax.backend:JaxBackend",
        later=(
            "jax.experimental.sparse.linalg",  # loads SciPy
            _SPLASH,
            f"{_SPLASH}.splash_attention_kernel",
            f"{_SPLASH}.splash_attention_mask",
        ),
        # Without any of these JAX computes on the CPU, also on a machine with GPUs.
        gpu_parts=tuple(
            (f"{plugin}/__init__.py", "")
            for plugin in ("jax_cuda12_plugin", "jax_cuda13_plugin")
        ),
        gpu_environment={"XLA_PYTHON_CLIENT_MEM_FRACTION": "{share}"},
        no_group="forms groups that end with their first member",
    ),
    "tensorflow": BackendEntry(
        target="shoal.backends.tensorflow:TensorFlowBackend",
        unused=("matplotlib", "pandas", "IPython"),
        # JAX logs ten lines about the processor, which would be a worker's last lines.
        environment={"TF_CPP_MIN_LOG_LEVEL": "2"},
        gpu_parts=(
            ("tensorflow/python/platform/build_info.py", "('is_cuda_build', True)"),
        ),
        gpu_environment={"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
        no_group="has MultiWorkerMirroredStrategy, which does not work with Keras 3",
    ),
    "torch": BackendEntry(
        target="shoal.backends.torch:TorchBackend",
        # `ComputeSpec.memory_share` limits the memory it may take.
        gpu_parts=(("torch/lib/libtorch_cuda.so", ""),),
        # NCCL's own watchdog would end a process whose group is broken.
        gpu_environment={
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
            "TORCH_NCCL_BLOCKING_WAIT": "1",
        },
        group="shoal.backends.torch_group:open_group",
        has_nccl=True,
    ),
}
"""Backends that can train, by their names in Keras."""
