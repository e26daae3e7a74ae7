"""The version of memcalc."""

__version__ = "0.1.0"
