"""Remedies: changes to a plan that need less memory, and their cost."""
