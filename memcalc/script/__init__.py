"""A user's training script, run unchanged on a simulated GPU."""
