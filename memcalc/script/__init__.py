"""Somebody's own training script, run as it is on a GPU that is not there."""
