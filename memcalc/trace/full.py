"""A GPU that is full, for a program that catches the error to try again with less."""

from __future__ import annotations

import torch


def without_frames(error: torch.OutOfMemoryError) -> torch.OutOfMemoryError:
    """The error, free of frames of ours: they would keep tensors alive that the program lets go.

    To be raised ``from None`` by a frame that has deleted its own tensors.
    """
    error.__context__ = None
    return error.with_traceback(None)
