"""Frames between processes, mutual proof of the secret, and encryption.

Launchers and the engine use them. This package imports neither.
"""
