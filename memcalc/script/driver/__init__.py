"""A stand-in for NVIDIA's driver and libraries: PyTorch's CUDA build runs over it without a GPU."""
