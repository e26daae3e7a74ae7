"""What is read from the device where nothing of the program says it."""

from __future__ import annotations

import os

import torch

from memcalc.trace import device


def compared_with_zeros() -> bool:
    """The stand-in driver runs no kernels: to compare with it, all that is read is zero."""
    return os.environ.get("MEMCALC_READS") == "zeros"


def read_as_zero(dtype: torch.dtype) -> bool | int | float:
    """Device memory that nobody wrote reads as zero; a CPU run's step counters read as one."""
    known = 1 if device.NAME == "cpu" else 0
    if dtype is torch.bool:
        return False
    return float(known) if dtype.is_floating_point else known
