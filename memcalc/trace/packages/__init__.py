"""Packages with CUDA kernels of their own: each file knows how one of them runs on fake tensors."""
