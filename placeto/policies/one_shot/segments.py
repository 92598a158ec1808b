"""Attention over long sequences in segments, and dense layers gated by a graph's embedding, the condition.

Legend: U elements, S segments, L elements of a segment, H hidden, C width of the condition.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SEGMENTS_AT_ONCE = 32


class SuperposedLinear(nn.Module):
    r"""A dense layer whose input is gated by a graph's embedding: parameter superposition.

    .. math:: y = W (c(g) \odot x) + b

    One set of weights serves many kinds of graphs: the gate c chooses which of the weights a graph uses (Cheung et al.
    2019, arXiv 1902.05522; in GDP, Zhou et al. 2019, arXiv 1910.01578). Gates begin at 1. If the width of the condition
    is 0, this is a plain dense layer.

    Shapes: ``x`` (..., in), ``condition`` (C,) -> (..., out).
    """

    def __init__(self, inputs: int, outputs: int, condition: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.gate = nn.Linear(condition, inputs) if condition else None
        if self.gate is not None:
            nn.init.zeros_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return the layer's output (..., out)."""
        return self.linear(x if self.gate is None else x * (2.0 * torch.sigmoid(self.gate(condition))))


class SegmentLayer(nn.Module):
    """A layer of Transformer-XL (Dai et al. 2019, arXiv 1901.02860) without positions and without a causal mask.

    An element attends to its own segment and to the one before. No gradient flows into the states of the segment
    before. With several layers, elements attend to segments further back. A layer's input is known for all segments, so
    `SEGMENTS_AT_ONCE` segments are computed at a time. The memory for attention is proportional to L, not to U.

    Shapes: ``x`` (U, H), ``condition`` (C,) -> (U, H).
    """

    def __init__(self, hidden: int, heads: int, segment: int, condition: int) -> None:
        super().__init__()
        self.heads, self.segment = heads, segment
        self.norm, self.feed_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query = SuperposedLinear(hidden, hidden, condition)
        self.key_value = SuperposedLinear(hidden, 2 * hidden, condition)
        self.out = SuperposedLinear(hidden, hidden, condition)
        self.widen = SuperposedLinear(hidden, 2 * hidden, condition)
        self.narrow = SuperposedLinear(2 * hidden, hidden, condition)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return the states (U, H) after this layer."""
        x = x + self.out(self._attend(self.norm(x), condition), condition)
        y = torch.relu(self.widen(self.feed_norm(x), condition))
        return x + self.narrow(y, condition)

    def _attend(self, y: Tensor, condition: Tensor) -> Tensor:
        """Return what elements y (U, H) read from their own segment and the one before: (U, H)."""
        length, hidden = y.shape
        size = min(self.segment, length)
        segments = -(-length // size)
        now = nn.functional.pad(y, (0, 0, 0, segments * size - length)).view(segments, size, hidden)
        before = torch.cat([torch.zeros_like(now[:1]), now[:-1].detach()])
        real = (torch.arange(segments * size, device=y.device) < length).view(segments, size)
        known = torch.cat([torch.zeros_like(real[:1]), real[:-1]])
        parts = []
        for i in range(0, segments, SEGMENTS_AT_ONCE):
            part = slice(i, i + SEGMENTS_AT_ONCE)
            read = torch.cat([before[part], now[part]], 1)  # (S, 2 L, H)
            mask = torch.cat([known[part], real[part]], 1)[:, None, None]  # (S, 1, 1, 2 L)
            query = self._split(self.query(now[part], condition))
            key, value = map(self._split, self.key_value(read, condition).chunk(2, -1))
            attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            parts.append(attended.transpose(1, 2).flatten(2))
        return torch.cat(parts).flatten(0, 1)[:length]

    def _split(self, x: Tensor) -> Tensor:
        """Split the heads of attention: (S, L, H) -> (S, heads, L, H / heads)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
