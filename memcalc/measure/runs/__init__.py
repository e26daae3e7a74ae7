"""Measured runs: child processes that train and report."""
