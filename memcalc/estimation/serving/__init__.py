"""Serving engines: what they would reserve, by their own rules."""
