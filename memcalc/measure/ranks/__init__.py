"""Runs of several processes that train together on this machine."""
