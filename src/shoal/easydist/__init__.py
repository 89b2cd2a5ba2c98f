"""EasyDist's face: one object that knows a bucket, and trains the script's model."""

from shoal.easydist.environment import ExecutionEnvironment

__all__ = ["ExecutionEnvironment"]
