"""The user's side of a run: arguments, callbacks, progress, and what a verb does."""
