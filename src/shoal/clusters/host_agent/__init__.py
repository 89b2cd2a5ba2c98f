"""What is done on the hosts of a cluster: sent there over ssh, run by any Python.

A host needs nothing of Shoal to run it, so these files import one another and the
standard library; `shoal.clusters.remote_call` makes one text of them. What they start
carries the variable `SHOAL_NODE`, and what carries it is all that they ever end.
"""
