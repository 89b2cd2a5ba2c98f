"""Where machines come from: one file a kind of cluster."""

from shoal.clusters.base import Cluster, Machines, Wish
from shoal.clusters.ray import Ray
from shoal.clusters.yarn import Yarn

__all__ = ["Cluster", "Machines", "Ray", "Wish", "Yarn"]
