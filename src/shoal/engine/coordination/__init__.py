"""Decisions about a run: samples, leases, rounds, versions, timeouts. Pure.

Imports no clock, socket, thread or vector, and no other folder of the engine.
"""
