"""The engine: server, workers and controller, and the protocol between them.

Which file decides what stands in docs/architecture.md, "Where to find it".
"""
