"""This machine: its processes, locks, temporary folders and who may read files."""
