"""The user's side of a run: arguments, callbacks, progress, implementation of `fit`."""
