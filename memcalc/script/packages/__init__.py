"""Support for packages beyond PyTorch, one file each.

Everything here acts when the package is imported, so a script pays for what it uses.
"""
