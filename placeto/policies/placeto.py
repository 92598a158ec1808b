"""Placeto: message passing embeds the graph, an iterative policy moves one node at a time.

Addanki et al., "Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine Learning",
NeurIPS 2019, arXiv 1906.08879. The default scores (node, device) pairs, so one set of parameters serves any number
and mix of devices; the paper's fixed-width device head, its features and its pooling are options.

Legend: V nodes of all graphs of a batch together, M arcs, B graphs, D devices, H hidden.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from placeto.environment.columns import EDGE, FEATURE_SETS, NODE, PAIR
from placeto.environment.observation import reach_matrix
from placeto.policies.base import PolicyError
from placeto.policies.message_passing import (
    GraphPooling,
    NeighbourhoodPooling,
    PairMessagePassing,
    TwoWayMessagePassing,
    device_pool,
    mlp,
)

_FINE = 0.003  # below it the logarithmic scale is linear
_FINE_RANGE = 5.0  # roughly what it maps 0.2 to, before it is divided by this


@dataclass(frozen=True)
class PlacetoConfig:
    """What the Placeto policy is made of."""

    features: Literal["schedule", "paper"] = "schedule"
    """"schedule": slack and lateness of the schedule; "paper": cost, output size, placement, current, visited."""
    fine_scale: bool = True
    """Whether the schedule's features come on a logarithmic scale as well, on which small differences show."""
    hidden: int = 48
    """Width of the embeddings."""
    rounds: int = 2
    """Rounds of message passing; 0 = none."""
    messages: Literal["nodes", "pairs"] = "nodes"
    """Messages between nodes, as in the paper, or between (node, device) pairs of the same device; these go with the
    "pair" head and without pooling."""
    pooling: Literal["devices", "paper", "simple", "none"] = "none"
    """"devices": mean over each device and the graph; "paper": ancestors, descendants, parallel nodes as well;
    "simple": one mean over the graph, the paper's simple aggregator."""
    head: Literal["pair", "fixed"] = "pair"
    """"pair" scores (node, device) pairs; "fixed" is the paper's head over a fixed number of devices."""
    fixed_devices: int = 4
    """Number of devices of the "fixed" head."""
    change_weight: float = 100.0
    """Weight of the predicted relative change of the makespan in the logit."""

    @property
    def scales(self) -> int:
        """On how many scales features come."""
        return 2 if self.fine_scale and self.features == "schedule" else 1


class PlacetoPolicy(nn.Module):
    """Scores every (node, device) pair of a batch of graphs.

    ``logit = agreement - change_weight * change``, both less their value at the node's current device: `agreement` is
    free, `change` predicts the relative change of the makespan by that one move (and can be trained on labels).
    """

    def __init__(self, config: PlacetoConfig) -> None:
        super().__init__()
        self.config = config
        nodes, pairs, edges = FEATURE_SETS[config.features]
        self.register_buffer("node_columns", torch.tensor([getattr(NODE, name) for name in nodes]), persistent=False)
        self.register_buffer("pair_columns", torch.tensor([getattr(PAIR, name) for name in pairs]), persistent=False)
        edge_columns = [getattr(EDGE, name) for name in edges]
        self.register_buffer("edge_columns", torch.tensor(edge_columns), persistent=False)
        if config.messages == "pairs":
            self._init_pairs(len(nodes), len(pairs), len(edges))
        else:
            self._init_nodes(len(nodes), len(pairs), len(edges))

    def _init_pairs(self, nodes: int, pairs: int, edges: int) -> None:
        config, hidden = self.config, self.config.hidden
        self.from_node = nn.Linear(config.scales * nodes, hidden)
        self.from_pair = nn.Linear(config.scales * pairs, hidden, bias=False)
        self.from_own = nn.Linear(config.scales * pairs, hidden, bias=False)
        self.pair_messages = nn.ModuleList(PairMessagePassing(hidden, edges) for _ in range(config.rounds))
        self.head = nn.Sequential(nn.LayerNorm(hidden), *mlp([hidden, 64, 64, 2]))
        self.shortcut = mlp([hidden, 64, 2])

    def _init_nodes(self, nodes: int, pairs: int, edges: int) -> None:
        config, hidden = self.config, self.config.hidden
        width = config.scales * pairs
        own = 0 if config.head == "fixed" else width  # features of the pair (node, its own device)
        one_hot = config.fixed_devices if config.head == "fixed" else 0
        self.encoder = mlp([config.scales * nodes + own + one_hot, hidden, hidden])
        self.message_passing = TwoWayMessagePassing(hidden, edges, config.rounds)
        self.neighbourhoods = NeighbourhoodPooling(hidden) if config.pooling == "paper" else None
        self.aggregator = GraphPooling(hidden) if config.pooling == "simple" else None
        self.norm = nn.LayerNorm(hidden)
        if config.head == "fixed":
            self.fixed = mlp([2 * hidden, 64, 2 * config.fixed_devices])
        else:
            self.from_node = nn.Linear(hidden, 64)
            self.from_pair = nn.Linear(width, 64, bias=False)
            if config.pooling in ("devices", "paper"):
                self.from_graph = nn.Linear(hidden, 64, bias=False)
                self.from_device = nn.Linear(hidden, 64, bias=False)
            self.head = nn.Sequential(nn.ReLU(), *mlp([64, 64, 2]))

    def forward(self, data: Data) -> tuple[Tensor, Tensor]:
        """Logits (V, D) and predicted relative changes (V, D); both zero at the node's current device.

        Computed where the parameters are; the answer comes back to where the observation is.
        """
        there, here = data.x.device, next(self.parameters()).device
        if there != here:
            logits, change = self(copy(data).to(here))
            return logits.to(there), change.to(there)
        config = self.config
        node, pair = data.x[:, self.node_columns], data.pair[:, :, self.pair_columns]
        if config.scales == 2:
            node, pair = two_scales(node), two_scales(pair)
        out = self._from_pairs(data, node, pair) if config.messages == "pairs" else self._from_nodes(data, node, pair)
        stay = data.current[:, None, None].expand(-1, 1, 2)
        out = out - out.gather(1, stay)
        change = out[..., 1] * 0.1  # typical changes are a few per cent: keep the head's outputs near one
        return out[..., 0] - config.change_weight * change, change

    def _from_pairs(self, data: Data, node: Tensor, pair: Tensor) -> Tensor:
        """(V, D, 2) agreement and change, before those of staying are taken off."""
        own, edges = data.current[:, None], data.edge_attr[:, self.edge_columns]
        here = pair.gather(1, own[..., None].expand(-1, 1, pair.shape[2]))
        z = first = torch.relu(self.from_node(node)[:, None] + self.from_pair(pair) + self.from_own(here))
        for messages in self.pair_messages:
            z = messages(z, own, data.edge_index, edges)
        out: Tensor = self.head(z) + self.shortcut(first)
        return out

    def _from_nodes(self, data: Data, node: Tensor, pair: Tensor) -> Tensor:
        """The same with messages between nodes."""
        config = self.config
        devices, rows = pair.shape[1], torch.arange(len(node), device=node.device)
        if config.head == "fixed":
            if devices > config.fixed_devices:
                raise PolicyError(f"the fixed head has {config.fixed_devices} devices, the cluster has {devices}")
            placed = nn.functional.one_hot(data.current, config.fixed_devices).to(node.dtype)
            h = self.encoder(torch.cat([node, placed], -1))
        else:
            h = self.encoder(torch.cat([node, pair[rows, data.current]], -1))
        h = self.message_passing(h, data.edge_index, data.edge_attr[:, self.edge_columns])
        if self.neighbourhoods is not None:
            h = h + self.neighbourhoods(h, reach_matrix(data).to(h.device), data.batch)
        if self.aggregator is not None:
            h = h + self.aggregator(h, data.batch, data.num_graphs)
        h = self.norm(h)
        if config.head == "fixed":
            graph, _ = _graph_means(h, data)
            both = torch.cat([h, graph.index_select(0, data.batch)], -1)
            out = self.fixed(both).view(len(h), 2, -1)[:, :, :devices].transpose(1, 2)
        else:
            z = self.from_node(h)[:, None] + self.from_pair(pair)
            if config.pooling in ("devices", "paper"):
                graph, count = _graph_means(h, data)
                z = z + self.from_graph(graph).index_select(0, data.batch)[:, None]
                slot = data.batch * devices + data.current
                total = device_pool(h, h.new_ones(len(h)), slot, data.num_graphs * devices)
                # a device that holds 1 / D of the nodes gives their mean
                share = data.exists[data.first].sum(1) / count
                mean = total.view(data.num_graphs, devices, -1) * share[:, None, None]
                z = z + self.from_device(mean).index_select(0, data.batch)
            out = self.head(z)
        return out


def _graph_means(h: Tensor, data: Data) -> tuple[Tensor, Tensor]:
    """Mean embedding of each graph (B, H), and the number of its nodes (B,)."""
    count = torch.bincount(data.batch, minlength=data.num_graphs).clamp(min=1).to(h.dtype)
    return device_pool(h, h.new_ones(len(h)), data.batch, data.num_graphs) / count[:, None], count


def two_scales(x: Tensor) -> Tensor:
    """Features (..., F) with their logarithms beside them: (..., 2 F).

    What decides between two moves is often a thousandth of the makespan, while features reach from 0 to 1.
    """
    return torch.cat([x, torch.asinh(x / _FINE) / _FINE_RANGE], -1)
