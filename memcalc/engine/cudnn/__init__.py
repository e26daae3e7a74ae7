"""Lets the real cuDNN plan for the simulated GPU."""
