"""Recording somebody's own training loop."""
