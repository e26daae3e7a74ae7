"""Operators of which PyTorch cannot say what they make without making it."""

from __future__ import annotations

from typing import Any

from memcalc.errors import EstimateError

_NO_RULE = "no fake impl", "Could not run 'aten::empty"
"""What PyTorch says then; the second where it would run the operator on zeros of the device.

Source: torch/_subclasses/fake_tensor.py, ``run_fallback_kernel`` (2.13).
"""


def without_rule(func: Any, error: NotImplementedError) -> Exception:
    """An error in one sentence, if that is what an operator ended with; else the error itself."""
    if not any(words in str(error) for words in _NO_RULE):
        return error
    return EstimateError(
        f"{func._schema.name} is not simulated: PyTorch has no rule for what it makes; run the "
        "script with --backend driver, or measure it with memcalc run."
    )
