"""What a GPU says of itself, through NVML."""
