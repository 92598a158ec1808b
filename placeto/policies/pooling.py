"""Pooling over a graph's nodes.

Legend: V nodes of all graphs of a batch together, B graphs, G nodes of the largest graph, H hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.utils import to_dense_batch

from placeto.policies.message_passing import mlp


class NeighbourhoodPooling(nn.Module):
    """The paper's pooling: what lies before, after and beside each node (Addanki et al. 2019, section 3.2.2).

    For each node the mean over its ancestors, over its descendants and over the nodes that are neither
    ("parallel"), each through its own network; the concatenation is mapped back to H.

    Shapes: ``x`` (V, H), ``reach`` (B, G, G) bool with reach[b, i, j] = i is an ancestor of j (G = largest graph
    of the batch), ``batch`` (V,) -> (V, H).
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList(mlp([hidden, hidden], last_activation=True) for _ in range(3))
        self.outer = mlp([3 * hidden, hidden, hidden])

    def forward(self, x: Tensor, reach: Tensor, batch: Tensor) -> Tensor:
        """(V, H) pooled neighbourhoods."""
        dense, mask = to_dense_batch(x, batch, max_num_nodes=reach.shape[1], batch_size=reach.shape[0])
        both = mask[:, :, None] & mask[:, None, :]
        itself = torch.eye(reach.shape[1], dtype=torch.bool, device=x.device)
        parallel = both & ~reach & ~reach.transpose(1, 2) & ~itself
        pooled = []
        for net, who in zip(self.inner, (reach.transpose(1, 2), reach, parallel), strict=True):
            weight = who.to(x.dtype)  # (B, G, G): row i = whom node i looks at
            pooled.append(weight @ net(dense) / weight.sum(-1, keepdim=True).clamp(min=1))
        return self.outer(torch.cat(pooled, -1)[mask])
