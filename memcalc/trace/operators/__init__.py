"""Operators as CUDA runs them, where fake tensors alone would show something else."""
