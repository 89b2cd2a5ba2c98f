"""One file a compute backend; the only room that imports one."""

BACKENDS = {"jax": "shoal.backends.jax:JaxBackend"}
"""Those that can train: name in Keras -> "module:class", imported by workers only."""

UNUSED = ("matplotlib", "pandas", "requests", "IPython")
"""What Keras imports if it can and no worker needs: a third of its import time."""

SPLASH = "jax.experimental.pallas.ops.tpu.splash_attention"
LATER = (
    "jax.experimental.sparse.linalg",  # loads SciPy
    SPLASH,
    f"{SPLASH}.splash_attention_kernel",
    f"{SPLASH}.splash_attention_mask",
)
"""What Keras and JAX import and few need: a third of what is left."""
