"""The run folder: the only contract between training and all programs that read it.

`store` writes one run, `events` keeps its event segments, `summary` folds events
into the facts about a run, `catalogue` finds and removes runs.
"""
