"""Runs of our own: children that train and say what they see."""
