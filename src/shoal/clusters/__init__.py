"""Clusters, which provide machines: one file and one line in `finding` for each."""

from shoal.clusters.base import Allocation, Cluster, ResourceRequest
from shoal.clusters.ray import Ray
from shoal.clusters.spark import Spark
from shoal.clusters.yarn import Yarn

__all__ = ["Allocation", "Cluster", "Ray", "ResourceRequest", "Spark", "Yarn"]
