"""Estimation: from a question to a prediction."""
