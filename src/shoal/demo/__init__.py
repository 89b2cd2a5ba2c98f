"""`shoal demo`: real data, plain Keras against Shoal, and a worker that is killed."""
