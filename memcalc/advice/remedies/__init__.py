"""Remedies: changes to a plan that need less memory, and what they cost."""
