"""JAX as a backend."""
