"""Runs a program on CUDA, real or simulated, and records what its allocator did."""
