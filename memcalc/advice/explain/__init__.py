"""Explains a peak: what is alive and why, and what each remedy saves, each from a full estimate."""
