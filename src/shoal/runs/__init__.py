"""The run folder: the only contract between training and all that looks at it.

`store` writes one run, `events` keeps its event segments, `summary` folds events
into what a person asks about a run, `catalogue` finds and removes runs.
"""
