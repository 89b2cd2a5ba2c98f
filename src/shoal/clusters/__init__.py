"""Where machines come from: one file a kind of cluster."""
