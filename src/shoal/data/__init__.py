"""What feeds a model: sources of samples, and the order they come in."""

from shoal.data.order import Order
from shoal.data.sources import ArraySource, Source
from shoal.data.training import training_data

__all__ = ["ArraySource", "Order", "Source", "training_data"]
