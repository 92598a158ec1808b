"""FLOPs of decompositions and solvers of linear algebra, for batches of matrices (..., M, N).

The formulas are the leading terms that Golub and Van Loan, Matrix Computations (4th edition, 2013), and LAPACK's
working note 41 give.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from torch import Tensor


def _sides(a: Tensor) -> tuple[int, int, int]:
    """Number of matrices, longer and shorter side."""
    rows, columns = a.shape[-2:]
    return prod(a.shape[:-2]), max(rows, columns), min(rows, columns)


def _columns(a: Tensor, b: Tensor) -> int:
    """Number of right-hand sides of each system of equations: K if b is matrices (..., N, K), 1 if it is vectors."""
    return b.shape[-1] if b.dim() >= a.dim() else 1


def _lu(a: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    count, long, short = _sides(a)
    return round(count * (long * short**2 - short**3 / 3))


def _cholesky(a: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    return round(prod(a.shape[:-2]) * a.shape[-1] ** 3 / 3)


def _inverse(a: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    return 2 * prod(a.shape[:-2]) * a.shape[-1] ** 3


def _solve(a: Tensor, b: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    """FLOPs of the LU factors, then of two triangular systems."""
    solution = out_val[0] if isinstance(out_val, list | tuple) else out_val
    return _lu(a, out_val=None) + 2 * a.shape[-1] * solution.numel()


def _cholesky_solve(b: Tensor, a: Tensor, *args: Any, out_val: Tensor, **kwargs: Any) -> int:
    return 2 * a.shape[-1] * out_val.numel()


def _lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, *args: Any, out_val: Tensor, **kwargs: Any) -> int:
    return 2 * lu.shape[-1] * out_val.numel()


def _triangular(a: Tensor, b: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    return a.shape[-1] * out_val.numel()


def _triangular_solve(b: Tensor, a: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    return a.shape[-1] * out_val[0].numel()


def _cholesky_inverse(a: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    return 2 * _cholesky(a, out_val=None)


def _reflections(a: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    count, long, short = _sides(a)
    return round(count * (2 * long * short**2 - 2 * short**3 / 3))


def _qr(a: Tensor, mode: str = "reduced", *, out_val: Any) -> int:
    """FLOPs of the reflections, and of their product Q unless the mode is "r", which returns R alone."""
    formed = 0 if mode == "r" else _formed(out_val[0], _sides(a)[2])
    return _reflections(a, out_val=None) + formed


def _formed(q: Tensor, number: int) -> int:
    """FLOPs of forming q (..., M, N), the product of this number of reflections."""
    rows, columns = q.shape[-2:]
    each = 4 * rows * columns * number - 2 * (rows + columns) * number**2 + 4 * number**3 / 3
    return round(prod(q.shape[:-2]) * each)


def _product_of_reflections(a: Tensor, tau: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    return _formed(a, tau.shape[-1])


def _reflected(a: Tensor, tau: Tensor, b: Tensor, left: bool = True, *args: Any, out_val: Any, **kwargs: Any) -> int:
    rows, columns, number = *b.shape[-2:], tau.shape[-1]
    own, other = (rows, columns) if left else (columns, rows)
    return prod(b.shape[:-2]) * (4 * own * other * number - 2 * other * number**2)


def _symmetric(a: Tensor, uplo: str = "L", compute_v: bool = True, *, out_val: Any) -> int:
    """FLOPs of the eigenvalues of symmetric matrices, with eigenvectors if `compute_v`."""
    cubes = prod(a.shape[:-2]) * a.shape[-1] ** 3
    return 9 * cubes if compute_v else round(4 * cubes / 3)


def _eigenvectors(a: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    return 25 * prod(a.shape[:-2]) * a.shape[-1] ** 3


def _eigenvalues(a: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    return 10 * prod(a.shape[:-2]) * a.shape[-1] ** 3


def _svd(a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None, out_val: Any) -> int:
    """FLOPs of singular values; if `compute_uv`, with vectors: with the thin ones, or all if `full_matrices`."""
    count, long, short = _sides(a)
    if not compute_uv:
        return round(count * (4 * long * short**2 - 4 * short**3 / 3))
    if full_matrices:
        return count * (4 * long**2 * short + 8 * long * short**2 + 9 * short**3)
    return count * (14 * long * short**2 + 8 * short**3)


def _least_squares(a: Tensor, b: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    """FLOPs of least squares: reflections of the matrix and of the right-hand sides, then a triangular system."""
    count, long, short = _sides(a)
    columns = count * _columns(a, b)
    return _reflections(a, out_val=None) + columns * (4 * long * short - short**2)


_KINDS: dict[Callable[..., int], str] = {
    _lu: "linalg_lu_factor_ex linalg_lu _linalg_det _linalg_slogdet",
    _cholesky: "linalg_cholesky_ex cholesky linalg_ldl_factor_ex",
    _inverse: "linalg_inv_ex",
    _cholesky_inverse: "cholesky_inverse",
    _solve: "_linalg_solve_ex",
    _cholesky_solve: "cholesky_solve _cholesky_solve_helper",
    _lu_solve: "linalg_lu_solve linalg_ldl_solve",
    _triangular: "linalg_solve_triangular",
    _triangular_solve: "triangular_solve",
    _reflections: "geqrf",
    _qr: "linalg_qr",
    _product_of_reflections: "linalg_householder_product",
    _reflected: "ormqr",
    _symmetric: "_linalg_eigh",
    _eigenvectors: "linalg_eig",
    _eigenvalues: "linalg_eigvals _linalg_eigvals",
    _svd: "_linalg_svd",
    _least_squares: "linalg_lstsq",
}
DECOMPOSING = {kind: formula for formula, kinds in _KINDS.items() for kind in kinds.split()}
"""Name of the op in aten -> formula of its FLOPs for real numbers, called as those in `placeto.capture.flops`."""
