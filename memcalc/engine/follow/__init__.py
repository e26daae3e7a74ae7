"""Follows any training program: its phases, models, optimizers and source lines."""
