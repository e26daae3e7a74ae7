"""Runs programs on CUDA and reads what PyTorch's allocator did."""
