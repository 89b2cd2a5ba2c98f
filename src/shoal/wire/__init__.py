"""Frames between processes, how two ends prove who they are, and encryption.

Launchers and the engine speak them. No import of launchers or of the engine.
"""
