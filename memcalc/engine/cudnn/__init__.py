"""Runs the real cuDNN's planning for the simulated GPU."""
