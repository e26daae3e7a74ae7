"""What PyTorch itself takes for linear algebra: copies of matrices and small arrays.

Beside it cuSOLVER has workspaces that nobody can tell. Source: aten/src/ATen/native/
BatchLinearAlgebra.cpp and cuda/linalg/BatchLinearAlgebra*.cpp (2.13), and what these allocate over
the stand-in driver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.scratch import nested
from memcalc.trace.scratch.shapes import Reader, bytes_of, fixed

_INT, _LONG = 4, 8
_SMALL = 32
"""Rows and columns up to which singular values are found by another kernel."""


def _taken(*sizes: int) -> KernelCall:
    return KernelCall("algebra", (nested(*sizes),))


def _sizes(matrix: torch.Tensor) -> tuple[int, int, int]:
    """Matrices, and the rows and columns of each."""
    rows, columns = matrix.shape[-2:]
    return matrix.numel() // max(rows * columns, 1), rows, columns


def _svd(args: tuple[Any, ...], out: Any) -> KernelCall:
    """The matrix is overwritten, so a copy is; small ones have square vectors, if few are asked.

    Source: cuda/linalg/BatchLinearAlgebraLib.cpp, ``svd_cusolver_gesvdjBatched`` (2.13).
    """
    matrix, whole = args[0], any(args[1:2])
    count, rows, columns = _sizes(matrix)
    few = max(rows, columns) <= _SMALL and rows != columns and not whole
    square = count * max(rows, columns) ** 2 * matrix.element_size() if few else 0
    return _taken(_INT * count, bytes_of(matrix), square)


def _qr(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Reflectors' factors; where only R is asked for, the reflectors lie elsewhere."""
    matrix, mode = args[0], (args[1:2] or ("reduced",))[0]
    count, rows, columns = _sizes(matrix)
    factors = count * min(rows, columns) * matrix.element_size()
    elsewhere = bytes_of(matrix) if mode == "r" and rows > columns else 0
    return _taken(factors, elsewhere, *(_pointers(count) if count > 1 else (_INT,)))


def _eigh(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Errors, and whether there were any."""
    count = _sizes(args[0])[0]
    return _taken(_INT * count, *(1,) * (1 if count > 1 else 2))


def _solved_by(rows: int, columns: int, count: int) -> str:
    """Who solves for so many columns by factors: triangles, cuBLAS, or cuSOLVER.

    Source: cuda/linalg/BatchLinearAlgebra.cpp, ``lu_solve_kernel`` (2.13).
    """
    few = count <= 2
    if rows == columns:
        return "cuBLAS" if rows <= 16 else "triangles"
    if rows <= 8:
        return "cuBLAS"
    if rows <= 64 and few and (columns <= 64 or rows <= 32):
        return "cuSOLVER"
    if rows <= 128 and few and columns <= 2:
        return "cuSOLVER"
    at_most = 8 if rows <= 64 else 2 if rows <= 128 else 0
    return "cuBLAS" if columns <= at_most else "triangles"


def _columns(args: tuple[Any, ...]) -> int:
    """Of what is solved for; a vector is one."""
    return 1 if _is_vector(args) else int(_solved(args).shape[-1])


def _is_vector(args: tuple[Any, ...]) -> bool:
    matrix: torch.Tensor = args[0]
    return _solved(args).dim() == matrix.dim() - 1


def _solved(args: tuple[Any, ...]) -> torch.Tensor:
    """It is the last tensor that operators which solve are given."""
    found: torch.Tensor = [arg for arg in args if isinstance(arg, torch.Tensor)][-1]
    return found


def _pivots(count: int, rows: int) -> tuple[int, ...]:
    """Pivots made a permutation: three arrays, of which one is the same for all matrices."""
    return (_LONG * rows, _LONG * count * rows, _LONG * count * rows)


def _inverse(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Factors, pivots, and the identity that is solved for."""
    count, rows, _ = _sizes(args[0])
    whole = bytes_of(args[0])
    if _solved_by(rows, rows, count) == "cuBLAS":
        return _taken(whole, _INT * count * rows, *_pointers(count))
    pivots = _INT * count * rows, *_pivots(count, rows)
    return _taken(whole, *pivots, whole, *_triangles(count, rows))


def _solve(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Factors lie in the output; what is solved for is last in both operators."""
    (count, rows, _), columns, solved = _sizes(args[0]), _columns(args), _solved(args)
    by = _solved_by(rows, columns, count)
    if by == "triangles":
        return _taken(*_pivots(count, rows), bytes_of(solved), *_triangles(count, rows))
    vector = bytes_of(solved) if _is_vector(args) else 0
    return _taken(vector, *(_pointers(count) if by == "cuBLAS" else (_INT,)))


def _pointers(count: int) -> tuple[int, ...]:
    """Where each matrix begins, and each of what goes with them."""
    return (_LONG * count,) * 2


def _triangles(count: int, rows: int) -> tuple[int, ...]:
    """Few large ones are solved one after the other; source: ``triangular_solve_kernel``."""
    return () if count <= 8 and rows >= 64 else _pointers(count)


def _solve_triangular(args: tuple[Any, ...], out: Any) -> KernelCall:
    count, rows, _ = _sizes(args[0])
    return fixed(after=nested(*_triangles(count, rows)))


def _determinants(errors: int) -> Reader:
    """So many errors of each, and which pivots swapped rows, counted."""

    def read(args: tuple[Any, ...], out: Any) -> KernelCall:
        count, rows, _ = _sizes(args[0])
        numbers = (*(_INT * count,) * errors, _INT * rows, count * rows)
        return _taken(*numbers, _LONG * count, _LONG * count * rows)

    return read


def _lu(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Factors in one matrix, before they are told apart."""
    count, rows, columns = _sizes(args[0])
    return _taken(bytes_of(args[0]), _INT * count * min(rows, columns), _INT * count)


def _cholesky_inverse(args: tuple[Any, ...], out: Any) -> KernelCall:
    whole = bytes_of(args[0])
    count = _sizes(args[0])[0]
    return _taken(whole, *(_pointers(count) if count > 1 else (_INT, whole)))


def _cholesky_solve(args: tuple[Any, ...], out: Any) -> KernelCall:
    """The factor is copied if it is the only one."""
    count = _sizes(args[1])[0]
    return _taken(*(_pointers(count) if count > 1 else (_INT, bytes_of(args[1]))))


def _householder(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Whether there was an error. Source: ``householder_product`` of the same."""
    return _taken(_INT)


def _check_errors(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Whether one is not zero, as a truth that is read."""
    return fixed(after=nested(*(1,) * (1 if args[0].dim() else 2)))


def _factored_by_cublas(args: tuple[Any, ...]) -> bool:
    """Square matrices, several of them (seen with up to 600 rows)."""
    count, rows, columns = _sizes(args[0])
    return count > 1 and rows == columns


def _reflected_by_cublas(args: tuple[Any, ...]) -> bool:
    """Source: the same, ``geqrf_kernel``."""
    count, rows, _ = _sizes(args[0])
    return rows <= 256 and count >= max(2, rows // 16)


def _solved_by_cublas(args: tuple[Any, ...]) -> bool:
    count, rows, _ = _sizes(args[0])
    return _solved_by(rows, _columns(args), count) != "cuSOLVER" or _factored_by_cublas(args)


def _several(args: tuple[Any, ...]) -> bool:
    return _sizes(args[0])[0] > 1


_ASKS: dict[str, Callable[[tuple[Any, ...]], bool]] = {
    **dict.fromkeys(
        ("linalg_solve_triangular", "triangular_solve", "linalg_inv_ex", "linalg_lstsq"),
        lambda _: True,
    ),
    **dict.fromkeys(("_linalg_solve_ex", "linalg_lu_solve"), _solved_by_cublas),
    **dict.fromkeys(
        ("linalg_lu_factor_ex", "linalg_lu", "_linalg_det", "_linalg_slogdet"),
        _factored_by_cublas,
    ),
    **dict.fromkeys(("linalg_qr", "geqrf"), _reflected_by_cublas),
    **dict.fromkeys(("cholesky_inverse", "cholesky_solve", "_cholesky_solve_helper"), _several),
}
"""Whether an operator asks for cuBLAS' handle, by what it is given."""
ASKING = frozenset(_ASKS)
"""Operators that may."""


def asks_cublas(name: str, args: tuple[Any, ...]) -> bool:
    """Linear algebra asks for cuBLAS' handle, with which its workspace is taken."""
    return name in _ASKS and _ASKS[name](args)


READERS: dict[str, Reader] = {
    "_linalg_svd": _svd,
    "linalg_householder_product": _householder,
    "linalg_qr": _qr,
    "_linalg_eigh": _eigh,
    "linalg_inv_ex": _inverse,
    "linalg_solve_triangular": _solve_triangular,
    **dict.fromkeys(("_linalg_solve_ex", "linalg_lu_solve"), _solve),
    "_linalg_det": _determinants(2),
    "_linalg_slogdet": _determinants(1),
    "linalg_lu": _lu,
    "cholesky_inverse": _cholesky_inverse,
    **dict.fromkeys(("cholesky_solve", "_cholesky_solve_helper"), _cholesky_solve),
    "_linalg_check_errors": _check_errors,
}
