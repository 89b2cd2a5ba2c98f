"""The controller: it follows a run and owns its processes.

Imports every other folder of the engine.
"""
