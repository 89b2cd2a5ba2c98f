"""Code for the hosts of a cluster: sent over ssh, run by any Python.

A host needs nothing of Shoal to run it, so these files import only one another and the
standard library; `shoal.clusters.remote_call` makes one text of them. Processes that
they start have the variable `SHOAL_NODE`, and they only end processes that have it.
"""
