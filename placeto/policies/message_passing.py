"""A round of message passing between nodes, and dense layers.

Legend: V nodes of all graphs of a batch together, M arcs, A features of an arc, H hidden.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


def mlp(sizes: list[int]) -> nn.Sequential:
    """Return linear layers with ReLU between them; `sizes` are those of the input and of each layer's output."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class EdgeMessagePassing(nn.Module):
    """A round of messages along and against the arcs. A message is computed from its sender and the arc's features.

    ``z <- z + update(z, from parents, from children)``. `update` and the messages read z after layer normalisation. The
    messages that a node receives from one side are summed and divided by the square root of their number.

    Shapes: ``z`` (V, H), ``edge_index`` (2, M), ``edge_attr`` (M, A) -> (V, H).
    """

    def __init__(self, hidden: int, edge_features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.source = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.edge = nn.ModuleList(nn.Linear(edge_features, hidden, bias=False) for _ in range(2))
        self.update = mlp([3 * hidden, hidden, hidden])

    def forward(self, z: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Return the embeddings (V, H) after a round."""
        y = self.norm(z)
        received = [y]
        for way, (source, edge) in enumerate(zip(self.source, self.edge, strict=True)):
            sender, receiver = edge_index[way], edge_index[1 - way]
            message = torch.relu(source(y).index_select(0, sender) + edge(edge_attr))
            count = torch.bincount(receiver, minlength=len(z)).clamp(min=1).to(z.dtype)
            received.append(torch.zeros_like(y).index_add_(0, receiver, message) * count.rsqrt()[:, None])
        return z + self.update(torch.cat(received, -1))
