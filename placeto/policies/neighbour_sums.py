"""Sums of what the neighbours of each node send, in many states of one graph at once, with the gradient of the sums.

Legend: S states of one graph, G nodes, M arcs, F features.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from placeto.plumbing.compiling import compiled


def neighbour_sums(sent: Tensor, arcs: np.ndarray) -> Tensor:
    """Sum what arrives at each node along the arcs, and what arrives against them. On the CPU only.

    Args:
        sent: (2, F, G, S) float32, what each node sends along the arcs and against them.
        arcs: (2, M) int64, from which node to which.

    Returns:
        (2, F, G, S) float32, the sums along the arcs and those against them; 0 where nothing arrives.
    """
    summed: Tensor = _NeighbourSums.apply(sent, arcs)
    return summed


class _NeighbourSums(torch.autograd.Function):
    """`neighbour_sums` for autograd: the gradient goes over the same arcs in the opposite direction."""

    @staticmethod
    def forward(context: Any, sent: Tensor, arcs: np.ndarray) -> Tensor:
        context.arcs = arcs
        return torch.from_numpy(_sums(sent.detach().contiguous().numpy(), arcs[0], arcs[1]))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        source, target = context.arcs
        return torch.from_numpy(_sums(gradients[0].contiguous().numpy(), target, source)), None


@compiled()
def _sums(sent: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    sums = np.zeros_like(sent)
    features, states = sent.shape[1], sent.shape[3]
    for f in range(features):
        for arc in range(len(source)):
            i, j = source[arc], target[arc]
            for s in range(states):
                sums[0, f, j, s] += sent[0, f, i, s]
            for s in range(states):
                sums[1, f, i, s] += sent[1, f, j, s]
    return sums
