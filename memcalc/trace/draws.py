"""Numbers that a model's own code draws on the host: the same in each trace.

A model may draw masks of its input or leave layers out; one question has one answer.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SEED = 0


@contextmanager
def alike() -> Iterator[None]:
    """Inside, Python, NumPy and PyTorch draw from one seed on the host; then go on as before."""
    numpy = sys.modules.get("numpy")
    drawn, of_torch = random.getstate(), torch.default_generator.get_state()
    of_numpy = numpy.random.get_state() if numpy is not None else None
    random.seed(_SEED)
    torch.default_generator.manual_seed(_SEED)
    if numpy is not None:
        numpy.random.seed(_SEED)
    try:
        yield
    finally:
        random.setstate(drawn)
        torch.default_generator.set_state(of_torch)
        if numpy is not None:
            numpy.random.set_state(of_numpy)
