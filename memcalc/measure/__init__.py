"""Measurement: a child process trains, and its parent keeps the figures."""
