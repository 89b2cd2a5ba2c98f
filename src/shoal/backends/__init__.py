"""One file a compute backend; the only room that imports one."""

BACKENDS = {"jax": "shoal.backends.jax:JaxBackend"}
"""Those that can train: name in Keras -> "module:class", imported by workers only."""
