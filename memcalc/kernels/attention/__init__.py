"""Attention kernels: which one runs, and what it takes beside its outputs."""
