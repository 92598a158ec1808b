"""Computing ops whose FLOPs nobody has counted, by their names."""

from __future__ import annotations

import re
from collections.abc import Callable

from placeto.problem.graph.graph import ComputationGraph

_COMPUTING = {
    "aten": re.compile(
        r"mm(_|$)|mv(_|$)|matmul|conv(?!ert)|linear(?!\dd)|attention|_rnn|lstm(?!_cell)|gru(?!_cell)|transformer"
        r"|linalg_(?!cross|vector_norm)|cholesky|(?<!re)solve|qrf|ormqr"
    ),
    "onnx": re.compile(
        r"MatMul|Gemm|Conv|Attention|LSTM|GRU|RNN|MoE|[Ff][Ff][Tt]$|DFT|STFT|Mamba|^CDist$|^Det$|Inverse$|Search$"
        r"|^Linear|^SVM"
    ),
}
"""In the names of the ops of a namespace that compute products."""
_NO_PRODUCTS = {"", "prims", "rngprims", "profiler", "c10d", "_c10d_functional", "torchvision", "optimizer", "graphs"}
"""Namespaces of ops that compute none, but for those with a formula."""


class UncountedWarning(UserWarning):
    """A captured step has computing ops whose FLOPs are not counted."""


def without_formula(graph: ComputationGraph, has_formula: Callable[[str], bool] = lambda kind: False) -> dict[str, int]:
    """Of the types of captured ops, those that may compute products and have no formula, and how many ops they are.

    They are aten's and ONNX's by their names, and all of packages that aren't torch's own, or of domains that aren't
    ONNX's.

    Args:
        graph: Its ops have types such as "aten.mm" and "onnx.Gemm".
        has_formula: Whether the FLOPs of a type are counted, although these ops have 0. Of ONNX's types none are.
    """
    counts: dict[str, int] = {}
    for kind, counted in zip(graph.op_types, graph.flops.tolist(), strict=True):
        namespace, _, name = kind.rpartition(".")
        named = _COMPUTING.get(namespace)
        computes = named.search(name) if named else namespace not in _NO_PRODUCTS
        if computes and not counted and not has_formula(kind):
            counts[kind] = counts.get(kind, 0) + 1
    return counts


def told(found: dict[str, int]) -> str:
    """One line about types of ops without a formula, "" where there is none."""
    if not found:
        return ""
    kinds = ", ".join(f"{kind} ({count} op{'s' * (count > 1)})" for kind, count in found.items())
    return f"there is no formula for the FLOPs of {kinds}: only bytes count there"
