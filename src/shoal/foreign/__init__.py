"""Programs of other frameworks on every node: each process is told its part."""
