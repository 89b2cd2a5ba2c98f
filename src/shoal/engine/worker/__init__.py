"""What a worker is: it leases data, computes, and exchanges.

Imports `transport` and `coordination`; knows no code of servers.
"""
