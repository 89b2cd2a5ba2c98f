"""Programs of other frameworks on every node, with each process's role."""
