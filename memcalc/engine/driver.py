"""Opens the stub driver in this process, before PyTorch is imported."""

from __future__ import annotations


def open_here() -> None:
    """See that PyTorch finds the stub driver where it looks for NVIDIA's."""
