"""Dtypes that ops compute in: their names, and which peak of a device holds for each.

With "tf32", GPUs since Ampere compute matrix products and convolutions of float32 tensors faster: the tensors have 32
bits, and the factors of the products are rounded to 19 bits.
"""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT = "float32"
DTYPES = ("float64", DEFAULT, "tf32", "bfloat16", "float16", "float8", "int8")
PRECISIONS = {"fp32": DEFAULT, "tf32": "tf32", "bf16": "bfloat16", "fp16": "float16"}
"""Precision that a run can use -> dtype of its matrix products."""
_INSTEAD = {
    "bfloat16": ("float16",),
    "float16": ("bfloat16",),
    "float8": ("bfloat16", "float16"),
    "int8": ("float8", "bfloat16", "float16"),
}
"""Dtype -> dtypes whose peaks are used in this order if its own isn't given; float32's is used after them."""


def peak(flops: float | Mapping[str, float], dtype: str) -> float:
    """Return the peak FLOP/s in a dtype.

    If `flops` is one number, it holds for all dtypes. Else it is the peak of the dtype itself, or of the next similar
    dtype that has one, or of float32.

    >>> peak({"float32": 15.7e12, "float16": 125e12}, "bfloat16"), peak({"float32": 15.7e12}, "tf32"), peak(1e9, "int8")
    (125000000000000.0, 15700000000000.0, 1000000000.0)
    """
    if not isinstance(flops, Mapping):
        return flops
    return next(flops[name] for name in (dtype, *_INSTEAD.get(dtype, ()), DEFAULT) if name in flops)
