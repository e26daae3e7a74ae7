"""What PyTorch calls types of numbers in its errors."""

from __future__ import annotations

import torch

_NAMES = {
    torch.float16: ("Half", "c10::Half"),
    torch.bfloat16: ("BFloat16", "c10::BFloat16"),
    torch.float32: ("Float", "float"),
    torch.float64: ("Double", "double"),
    torch.complex64: ("ComplexFloat", "c10::complex<float>"),
    torch.complex128: ("ComplexDouble", "c10::complex<double>"),
    torch.int64: ("Long", "long"),
    torch.int32: ("Int", "int"),
    torch.int16: ("Short", "short"),
    torch.int8: ("Char", "signed char"),
    torch.uint8: ("Byte", "unsigned char"),
    torch.bool: ("Bool", "bool"),
}
"""PyTorch's own names (c10/core/ScalarType.h, 2.13), and those of C++."""


def name_of(dtype: torch.dtype) -> str:
    """Such as ``Half``."""
    return _both(dtype)[0]


def c_name_of(dtype: torch.dtype) -> str:
    """Such as ``c10::Half``."""
    return _both(dtype)[1]


def _both(dtype: torch.dtype) -> tuple[str, str]:
    plain = str(dtype).removeprefix("torch.")
    return _NAMES.get(dtype, (plain, plain))
