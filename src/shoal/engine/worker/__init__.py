"""Workers: they lease data, compute, and exchange.

Imports `transport` and `coordination`; knows no code of servers.
"""
