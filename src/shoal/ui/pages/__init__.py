"""One file a page: each reads what it shows, and renders it."""
