"""Follows a program that nobody wrote for memcalc: its phases, models, optimizers and lines."""
