"""Traces whose sizes are formulas of batch and sequence length: no PyTorch in here."""
