"""Message passing layers.

Legend: V nodes of all graphs of a batch together, M arcs, A features of an arc, H hidden.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


def mlp(sizes: list[int]) -> nn.Sequential:
    """Linear layers of the given sizes with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class EdgeMessagePassing(nn.Module):
    """A round of messages along and against the arcs, which read the arc's features as well.

    ``z <- z + update(z, from parents, from children)``, sums divided by the square root of the number of messages.

    Shapes: ``z`` (V, H), ``edge_index`` (2, M), ``edge_attr`` (M, A) -> (V, H).
    """

    def __init__(self, hidden: int, edge_features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.source = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.edge = nn.ModuleList(nn.Linear(edge_features, hidden, bias=False) for _ in range(2))
        self.update = mlp([3 * hidden, hidden, hidden])

    def forward(self, z: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """(V, H) embeddings after a round."""
        y = self.norm(z)
        received = [y]
        for way, (source, edge) in enumerate(zip(self.source, self.edge, strict=True)):
            sender, receiver = edge_index[way], edge_index[1 - way]
            message = torch.relu(source(y).index_select(0, sender) + edge(edge_attr))
            count = torch.bincount(receiver, minlength=len(z)).clamp(min=1).to(z.dtype)
            received.append(torch.zeros_like(y).index_add_(0, receiver, message) * count.rsqrt()[:, None])
        return z + self.update(torch.cat(received, -1))
