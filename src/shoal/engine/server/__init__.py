"""Servers: they apply and merge messages, and send events to a standby.

Imports `transport` and `coordination`; knows no code of workers.
"""
