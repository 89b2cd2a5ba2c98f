"""The engine: server, workers and controller, and the protocol between them.

docs/architecture.md, "Where to find it", says which file decides what.
"""
