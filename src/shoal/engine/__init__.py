"""The engine: server, workers and controller, and the protocol between them."""
