"""The stub driver: NVIDIA's libraries for a simulated GPU, whose kernels do nothing."""
