"""Questions that ask several estimates: explain, fit, suggest, remedies."""
