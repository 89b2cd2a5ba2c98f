"""What a server is: it applies and merges messages, and is followed by a standby.

Imports `transport` and `coordination`; knows no code of workers.
"""
