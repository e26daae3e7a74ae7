"""Serving engines themselves, started over the stub driver."""
