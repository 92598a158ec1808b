"""Measure how much longer torch takes for a backward pass in two chunks, I and W, than in one, B.

W computes the gradients of each layer's parameters on its own, and adds them up in Python. This takes time for each
parameter, and for each byte of it. Both are fitted to the CPU times of this thread for chains of small and of large
layers.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from placeto.problem.costs.profiled import Fit
from placeto.runtime.transport.transfers import REPEATS

_LAYERS, _ROWS, _WIDTHS = 8, 64, (8, 512)


def split_chunks() -> Fit:
    """Return the microseconds that two chunks take more than one: for each parameter, and for each byte of it."""
    beside, terms = [], []
    for width in _WIDTHS:
        chain = nn.Sequential(*(nn.Linear(width, width) for _ in range(_LAYERS)))
        whole, parts = _backward(chain, torch.randn(_ROWS, width, requires_grad=True))
        beside.append(max(parts - whole, 0.0))
        terms.append([2 * _LAYERS, 4 * _LAYERS * (width * width + width)])
    fixed, per_byte = nnls(np.array(terms, float), np.array(beside))[0]
    return Fit(float(fixed), 0.0, float(per_byte))


def _backward(chain: nn.Module, rows: Tensor) -> tuple[float, float]:
    """Return the median microseconds of B, and of I and W together."""
    whole, parts, ones = list[float](), list[float](), torch.ones_like(rows)
    for _ in range(REPEATS):
        output = chain(rows)
        start = time.thread_time()
        torch.autograd.backward([output], [ones])
        whole.append(time.thread_time() - start)
        output = chain(rows)
        start = time.thread_time()
        _, groups = stage_backward_input([output], [ones], [rows], chain.parameters())
        stage_backward_weight(chain.parameters(), groups)
        parts.append(time.thread_time() - start)
    return float(np.median(whole[1:])) * 1e6, float(np.median(parts[1:])) * 1e6
