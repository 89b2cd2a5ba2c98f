"""Launchers of processes: this machine, and others by an engine's agents."""
