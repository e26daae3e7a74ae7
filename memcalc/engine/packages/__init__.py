"""Packages that need help to run over the stub driver, or to be followed; one file each."""
