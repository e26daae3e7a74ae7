"""What PyTorch itself takes for linear algebra: copies of matrices and small arrays.

Beside it cuSOLVER has workspaces that nobody can tell. Source: aten/src/ATen/native/
BatchLinearAlgebra.cpp and cuda/linalg/BatchLinearAlgebra*.cpp (2.13), and what these allocate over
the stand-in driver.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.scratch import nested
from memcalc.trace.scratch.shapes import Reader, bytes_of, fixed

_INT, _LONG = 4, 8


def _taken(*sizes: int) -> KernelCall:
    return KernelCall("algebra", (nested(*sizes),))


def _sizes(matrix: torch.Tensor) -> tuple[int, int, int]:
    """Matrices, and the rows and columns of each."""
    rows, columns = matrix.shape[-2:]
    return matrix.numel() // max(rows * columns, 1), rows, columns


def _svd(args: tuple[Any, ...], out: Any) -> KernelCall:
    """The matrix is overwritten, so a copy is."""
    return _taken(_INT * _sizes(args[0])[0], bytes_of(args[0]))


def _qr(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Reflectors' factors; where only R is asked for, the reflectors lie elsewhere."""
    matrix, mode = args[0], (args[1:2] or ("reduced",))[0]
    count, rows, columns = _sizes(matrix)
    factors = count * min(rows, columns) * matrix.element_size()
    elsewhere = bytes_of(matrix) if mode == "r" and rows > columns else 0
    pointers = (_LONG * count,) * 2 if count > 1 else (_INT,)
    return _taken(factors, elsewhere, *pointers)


def _eigh(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Errors, and whether there were any."""
    count = _sizes(args[0])[0]
    return _taken(_INT * count, *(1,) * (1 if count > 1 else 2))


def _pivots(count: int, rows: int) -> tuple[int, ...]:
    """Pivots made a permutation: three arrays, of which one is the same for all matrices."""
    return (_LONG * rows, _LONG * count * rows, _LONG * count * rows)


def _inverse(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Factors, pivots, and the identity that is solved for."""
    count, rows, _ = _sizes(args[0])
    whole = bytes_of(args[0])
    return _taken(whole, _INT * count * rows, *_pivots(count, rows), whole)


def _solve(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Factors lie in the output; what is solved for is last in both operators."""
    count, rows, _ = _sizes(args[0])
    solved = [arg for arg in args if isinstance(arg, torch.Tensor)][-1]
    return _taken(*_pivots(count, rows), bytes_of(solved))


def _determinant(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Errors, and which pivots swapped rows, counted."""
    count, rows, _ = _sizes(args[0])
    numbers = (_INT * count, _INT * rows, count * rows)
    return _taken(*numbers, _LONG * count, _LONG * count * rows)


def _lu(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Factors in one matrix, before they are told apart."""
    count, rows, columns = _sizes(args[0])
    return _taken(bytes_of(args[0]), _INT * count * min(rows, columns), _INT * count)


def _cholesky_inverse(args: tuple[Any, ...], out: Any) -> KernelCall:
    whole = bytes_of(args[0])
    return _taken(whole, _INT, whole) if _sizes(args[0])[0] == 1 else _taken(whole)


def _cholesky_solve(args: tuple[Any, ...], out: Any) -> KernelCall:
    """The factor is copied if it is the only one."""
    return _taken(_INT, bytes_of(args[1])) if _sizes(args[1])[0] == 1 else _taken()


def _check_errors(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Whether one is not zero, as a truth that is read."""
    return fixed(after=nested(*(1,) * (1 if args[0].dim() else 2)))


READERS: dict[str, Reader] = {
    "_linalg_svd": _svd,
    "linalg_qr": _qr,
    "_linalg_eigh": _eigh,
    "linalg_inv_ex": _inverse,
    **dict.fromkeys(("_linalg_solve_ex", "linalg_lu_solve"), _solve),
    **dict.fromkeys(("_linalg_det", "_linalg_slogdet"), _determinant),
    "linalg_lu": _lu,
    "cholesky_inverse": _cholesky_inverse,
    **dict.fromkeys(("cholesky_solve", "_cholesky_solve_helper"), _cholesky_solve),
    "_linalg_check_errors": _check_errors,
}
