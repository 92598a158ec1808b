"""What ops compute in: the names of dtypes, and which peak of a device holds for each.

"tf32" is what GPUs since Ampere make of float32 matrix products and convolutions where they are allowed to: tensors
of 32 bits, products of 19.
"""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT = "float32"
DTYPES = ("float64", DEFAULT, "tf32", "bfloat16", "float16", "float8", "int8")
PRECISIONS = {"fp32": DEFAULT, "tf32": "tf32", "bf16": "bfloat16", "fp16": "float16"}
"""What a run can be told to use, and the dtype of its matrix products."""
_INSTEAD = {
    "bfloat16": ("float16",),
    "float16": ("bfloat16",),
    "float8": ("bfloat16", "float16"),
    "int8": ("float8", "bfloat16", "float16"),
}
"""Dtypes whose peak holds where a dtype's own isn't given; float32 after them."""


def peak(flops: float | Mapping[str, float], dtype: str) -> float:
    """FLOP/s in a dtype: of one number, that; of several, the dtype's own, else that of its next kin, else float32's.

    >>> peak({"float32": 15.7e12, "float16": 125e12}, "bfloat16"), peak({"float32": 15.7e12}, "tf32"), peak(1e9, "int8")
    (125000000000000.0, 15700000000000.0, 1000000000.0)
    """
    if not isinstance(flops, Mapping):
        return flops
    return next(flops[name] for name in (dtype, *_INSTEAD.get(dtype, ()), DEFAULT) if name in flops)
