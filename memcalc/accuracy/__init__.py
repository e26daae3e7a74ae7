"""Predictions beside measurements: where they differ, and by how much."""
