"""Message passing and pooling layers.

Legend: V nodes of all graphs of a batch together, M arcs, B graphs, D devices, H hidden.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import to_dense_batch


def mlp(sizes: list[int], *, last_activation: bool = False) -> nn.Sequential:
    """Linear layers of the given sizes with ReLU between them (and after the last, if asked)."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*(layers if last_activation else layers[:-1]))


class DirectedMessagePassing(MessagePassing):
    r"""One direction of Placeto's message passing, with arc features.

    .. math:: m_v = g\Big(\sum_{u \to v} h([x_u, a_{uv}]) \Big) \quad

    The sum is divided by the square root of the number of messages, so that hubs don't blow up.
    Addanki et al. 2019 (arXiv 1906.08879), section 3.2.1; arc features are an addition.

    Shapes: ``x`` (V, H), ``edge_index`` (2, M), ``edge_attr`` (M, A) -> (V, H).
    """

    def __init__(self, hidden: int, edge_features: int, flow: str) -> None:
        super().__init__(aggr="sum", flow=flow)
        self.source = nn.Linear(hidden, hidden)
        self.edge = nn.Linear(edge_features, hidden, bias=False) if edge_features else None
        self.update_mlp = mlp([hidden, hidden, hidden])

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Messages received by each node."""
        receiver = edge_index[1] if self.flow == "source_to_target" else edge_index[0]
        degree = x.new_zeros(x.shape[0]).index_add_(0, receiver, x.new_ones(receiver.shape[0]))
        edges = None if self.edge is None else self.edge(edge_attr)
        total = self.propagate(edge_index, x=self.source(x), edges=edges)
        return self.update_mlp(total * degree.clamp(min=1).rsqrt()[:, None])

    def message(self, x_j: Tensor, edges: Tensor | None) -> Tensor:
        """h of one arc: (M, H)."""
        return torch.relu(x_j if edges is None else x_j + edges)


class TwoWayMessagePassing(nn.Module):
    """Rounds of message passing along and against the arcs, with separate weights for the two ways.

    ``x <- x + along(x) + against(x)``, the same weights in every round, as in Placeto (section 3.2.1).
    Shapes as in `DirectedMessagePassing`.
    """

    def __init__(self, hidden: int, edge_features: int, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        if rounds:
            self.along = DirectedMessagePassing(hidden, edge_features, "source_to_target")
            self.against = DirectedMessagePassing(hidden, edge_features, "target_to_source")
            self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """(V, H) embeddings after all rounds."""
        for _ in range(self.rounds):
            y = self.norm(x)
            x = x + self.along(y, edge_index, edge_attr) + self.against(y, edge_index, edge_attr)
        return x


class PairMessagePassing(nn.Module):
    """A round of messages between (node, device) pairs of the same device, along and against the arcs.

    So a node learns for each device what its neighbours would find there, and what they have where they are.
    ``z <- z + update(z, from parents, from children)``, sums divided by the square root of the number of messages.
    An addition to Placeto, whose messages are between nodes (`TwoWayMessagePassing`).

    Shapes: ``z`` (V, D, H), ``own`` (V, 1) int64 the device of each node, ``edge_index`` (2, M), ``edge_attr`` (M, A)
    -> (V, D, H).
    """

    def __init__(self, hidden: int, edge_features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.there = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.here = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.edge = nn.ModuleList(nn.Linear(edge_features, hidden, bias=False) for _ in range(2))
        self.update = mlp([3 * hidden, hidden, hidden])

    def forward(self, z: Tensor, own: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """(V, D, H) embeddings after a round."""
        y = self.norm(z)
        here = y.gather(1, own[..., None].expand(-1, 1, z.shape[2]))
        received = [y]
        for way, (there, at_home, edge) in enumerate(zip(self.there, self.here, self.edge, strict=True)):
            source, receiver = edge_index[way], edge_index[1 - way]
            sent = (there(y) + at_home(here)).index_select(0, source)
            message = torch.relu(sent + edge(edge_attr)[:, None])
            count = torch.bincount(receiver, minlength=len(z)).clamp(min=1).to(z.dtype)
            received.append(torch.zeros_like(y).index_add_(0, receiver, message) * count.rsqrt()[:, None, None])
        return z + self.update(torch.cat(received, -1))


class NeighbourhoodPooling(nn.Module):
    """Placeto's pooling: what lies before, after and beside each node (section 3.2.2 of the paper).

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


class GraphPooling(nn.Module):
    """One network for all nodes of a graph, their mean through another: the paper's "simple aggregator" (section 4.3).

    Every node of a graph gets the same. Shapes: ``x`` (V, H), ``batch`` (V,) -> (V, H).
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.inner = mlp([hidden, hidden], last_activation=True)
        self.outer = mlp([hidden, hidden, hidden])

    def forward(self, x: Tensor, batch: Tensor, graphs: int) -> Tensor:
        """(V, H) each node's graph."""
        ones = x.new_ones(len(x))
        count = device_pool(ones[:, None], ones, batch, graphs).clamp(min=1)
        return self.outer(device_pool(self.inner(x), ones, batch, graphs) / count).index_select(0, batch)


def device_pool(x: Tensor, weight: Tensor, slot: Tensor, slots: int) -> Tensor:
    """Weighted sum of node embeddings per slot (a device of a graph, say): (V, H), (V,), (V,) -> (slots, H)."""
    return x.new_zeros(slots, x.shape[1]).index_add_(0, slot, x * weight[:, None])
