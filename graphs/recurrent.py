"""What the recurrent families have in common: an LSTM cell written out op by op, and the loss over blocks of steps.

In the families `rnnlm` and `gnmt`, each sigmoid, product and sum of a cell is an op of its own, as in the graphs of
Mirhoseini et al. (2017) and GDP (2019). The families `ptb` and `nmt` have other cells, in which one fused op takes the
place of these.

Legend: B sequences, H hidden units, T steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = tuple[Tensor, Tensor]  # hidden (B, H), cell (B, H)
BLOCK = 10  # steps of one softmax


class LSTMCell(nn.Module):
    """One LSTM step (Hochreiter and Schmidhuber, 1997), one matrix product for all gates."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs + hidden, 4 * hidden))
        self.bias = nn.Parameter(torch.empty(4 * hidden))

    def forward(self, x: Tensor, state: State) -> State:
        """Input (B, inputs) and state -> state."""
        hidden, cell = state
        gates = torch.addmm(self.bias, torch.cat([x, hidden], dim=1), self.weight)
        i, f, g, o = gates.chunk(4, dim=1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell


def softmax_blocks(output: nn.Module, tops: Sequence[Tensor]) -> list[Tensor]:
    """T outputs (B, H) -> the logits of each `BLOCK` of steps, (block * B, words)."""
    return [output(torch.cat(tuple(tops[i : i + BLOCK]))) for i in range(0, len(tops), BLOCK)]


def loss(logits: list[Tensor], following: Tensor) -> Tensor:
    """Cross-entropy of the following words (T * B,), summed over the blocks."""
    targets = following.split([len(block) for block in logits])
    return torch.stack([F.cross_entropy(x, y) for x, y in zip(logits, targets, strict=True)]).sum()
