"""PyTorch's CUDA caching allocator, modelled to the byte, without PyTorch."""
