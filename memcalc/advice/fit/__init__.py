"""Finds what fits: the largest batch and sequence, the GPUs and the settings."""
