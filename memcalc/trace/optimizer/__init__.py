"""The optimizer of a simulated run."""
