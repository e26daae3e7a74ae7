"""Closed forms: what can be said of a training run without running any of its code."""
