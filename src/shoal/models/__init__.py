"""Keras models as the engine needs them: read, packed for a worker, and scored."""
