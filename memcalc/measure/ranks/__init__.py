"""Runs of several processes, started by torchrun."""
