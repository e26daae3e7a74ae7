"""The simulated GPU: real training code runs on it and every storage is recorded."""
