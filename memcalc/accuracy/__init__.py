"""Predictions beside measurements: who is off, where, and by how much."""
