"""EasyDist's API: one object that reads a bucket and trains the script's model."""

from shoal.easydist.environment import ExecutionEnvironment

__all__ = ["ExecutionEnvironment"]
