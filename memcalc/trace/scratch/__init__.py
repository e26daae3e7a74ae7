"""What kernels take beside their outputs, read off each call."""
