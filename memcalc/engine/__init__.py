"""Runs programs on CUDA, over NVIDIA's driver or over a stub of it, and reads the allocator."""
