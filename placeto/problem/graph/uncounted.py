"""Ops that compute products but have no count of FLOPs, found by their names."""

from __future__ import annotations

import re
from collections.abc import Callable

from placeto.problem.graph.graph import ComputationGraph

_COMPUTING = {
    "aten": re.compile(
        r"mm(_|$)|mv(_|$)|matmul|conv(?!ert)|linear(?!\dd)|attention|_rnn|lstm(?!_cell)|gru(?!_cell)|transformer"
        r"|linalg_(?!cross|vector_norm)|cholesky|(?<!re)solve|qrf|ormqr|pdist"
    ),
    "onnx": re.compile(
        r"MatMul|Gemm|Conv|Attention|LSTM|GRU|RNN|MoE|[Ff][Ff][Tt]$|DFT|STFT|Mamba|^CDist$|^Det$|Inverse$|Search$"
        r"|^Linear|^SVM"
    ),
}
"""Namespace -> pattern that is found in the names of its ops that compute products."""
_NO_PRODUCTS = {"", "prims", "rngprims", "profiler", "c10d", "_c10d_functional", "torchvision", "optimizer", "graphs"}
"""Namespaces whose ops compute no products, except those that have a formula."""


class UncountedWarning(UserWarning):
    """A captured step has computing ops whose FLOPs are not counted."""


def without_formula(graph: ComputationGraph, has_formula: Callable[[str], bool] = lambda kind: False) -> dict[str, int]:
    """Return the types of captured ops that may compute products but have no formula, each with its number of ops.

    In the namespaces of aten and ONNX, they are found by their names. Of packages other than torch's own and of domains
    other than ONNX's, all types without FLOPs count.

    Args:
        graph: Its ops have types such as "aten.mm" and "onnx.Gemm".
        has_formula: Whether there is a formula for the FLOPs of a type, so that 0 FLOPs are a count. ONNX's types have
            none.
    """
    counts: dict[str, int] = {}
    for kind, counted in zip(graph.op_types, graph.flops.tolist(), strict=True):
        namespace, _, name = kind.rpartition(".")
        named = _COMPUTING.get(namespace)
        computes = named.search(name) if named else namespace not in _NO_PRODUCTS
        if computes and not counted and not has_formula(kind):
            counts[kind] = counts.get(kind, 0) + 1
    return counts


def told(counts: dict[str, int]) -> str:
    """Return a line for users about types of ops without a formula, "" if there are no such types."""
    if not counts:
        return ""
    kinds = ", ".join(f"{kind} ({count} op{'s' * (count > 1)})" for kind, count in counts.items())
    return f"there is no formula for the FLOPs of {kinds}: only bytes count there"
