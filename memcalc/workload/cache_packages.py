"""The packages that quantise keys and values, looked for before anything is built."""

from __future__ import annotations

import inspect

from memcalc.errors import UsageError
from memcalc.files.extras import lacking

_PACKAGES = {
    "quantized": ("optimum.quanto", "optimum-quanto"),
    "quantized-hqq": ("hqq", "hqq"),
}
"""Module and package by ``Plan.cache``; what PyTorch does itself is not here."""


def check(cache: str) -> None:
    """See that a cache's package is here.

    Raises:
        UsageError: it is not installed.
    """
    module, package = _PACKAGES.get(cache, ("", ""))
    said = lacking(f"The cache {cache} needs", package, module=module) if module else None
    if said is not None:
        raise UsageError(f"{said}, or name another --cache; quantized-fp8 needs nothing.")


def gathered(cache: str) -> int:
    """How many tokens a cache gathers before it quantises them together.

    Source: transformers 5.23, cache_utils.py, ``QuantizedLayer``.
    """
    from transformers import cache_utils

    layer = {"quantized": "QuantoQuantizedLayer", "quantized-hqq": "HQQQuantizedLayer"}[cache]
    taken = inspect.signature(getattr(cache_utils, layer)).parameters
    return int(taken["residual_length"].default)
