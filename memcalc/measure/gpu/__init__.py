"""GPU readings through NVML."""
