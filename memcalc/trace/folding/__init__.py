"""Deep models traced through a few of their layers, and continued."""
