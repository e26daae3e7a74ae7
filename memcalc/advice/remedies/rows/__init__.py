"""Remedies by what they give up: nothing, time, digits, or what is trained."""
