"""HQQ: quantised keys and values, by PyTorch's own operators. Read in 0.2.8."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

import torch

from memcalc.trace.ledger import Ledger
from memcalc.trace.torch_private.names import replaced


@contextlib.contextmanager
def on_cuda(ledger: Ledger) -> Iterator[None]:
    """Let it do what it does on CUDA, which it knows by its name.

    It looks for the best constants in half precision there (core/optimize.py,
    ``optimize_weights_proximal_legacy``), with one number beside them in 32 bits, which is taken
    for half as much here. And it empties the allocator's cache whenever it has quantised.
    """
    optimize = importlib.import_module("hqq.core.optimize")
    with (
        replaced(optimize, "float32", torch.float16),
        replaced(torch.cuda, "empty_cache", ledger.empty_cache),
    ):
        yield
