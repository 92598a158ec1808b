"""FLOPs of LU and Cholesky factors, inverses and solved systems, for batches of matrices (..., M, N).

The formulas are the leading terms that Golub and Van Loan, Matrix Computations (4th edition, 2013), and LAPACK's
working note 41 give.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from torch import Tensor


def _lu(a: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    short, long = sorted(a.shape[-2:])
    return round(prod(a.shape[:-2]) * (long * short**2 - short**3 / 3))


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


_KINDS: dict[Callable[..., int], str] = {
    _lu: "linalg_lu_factor_ex linalg_lu _linalg_det _linalg_slogdet",
    _cholesky: "linalg_cholesky_ex cholesky",
    _inverse: "linalg_inv_ex",
    _cholesky_inverse: "cholesky_inverse",
    _solve: "_linalg_solve_ex",
    _cholesky_solve: "cholesky_solve _cholesky_solve_helper",
    _lu_solve: "linalg_lu_solve",
    _triangular: "linalg_solve_triangular",
    _triangular_solve: "triangular_solve",
}
SOLVING = {kind: formula for formula, kinds in _KINDS.items() for kind in kinds.split()}
"""Name of the op in aten -> formula of its FLOPs for real numbers, called as in `placeto.capture.costing.flops`."""
