"""What CUDA kernels and libraries take beside the tensors of the program. No torch in here."""
