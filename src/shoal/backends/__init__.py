"""One file a compute backend; the only room that imports one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

_SPLASH = "jax.experimental.pallas.ops.tpu.splash_attention"


@final
@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is known of a backend before anything of it is imported.

    Args:
        target: "module:class", imported by workers only.
        unused: What Keras imports if it can and no worker needs: a third of its
            import time.
        later: What Keras and the backend import and few need.
        environment: Variables of workers, where the user has not set them.
    """

    target: str
    unused: tuple[str, ...] = ("matplotlib", "pandas", "requests", "IPython")
    later: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


BACKENDS = {
    "jax": Entry(
        target="shoal.backends.jax:JaxBackend",
        later=(
            "jax.experimental.sparse.linalg",  # loads SciPy
            _SPLASH,
            f"{_SPLASH}.splash_attention_kernel",
            f"{_SPLASH}.splash_attention_mask",
        ),
    ),
    "tensorflow": Entry(
        target="shoal.backends.tensorflow:TensorFlowBackend",
        unused=("matplotlib", "pandas", "IPython"),
        # It tells of the processor in ten lines, which would be a worker's last words.
        environment={"TF_CPP_MIN_LOG_LEVEL": "2"},
    ),
    "torch": Entry(target="shoal.backends.torch:TorchBackend"),
}
"""Those that can train, by their names in Keras."""
