"""Observations as tensors.

Legend: B episodes, V nodes of all episodes together, M arcs, D devices, G groups of the largest graph.
"""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data

from placeto.environment.observation import Observation


def to_data(observation: Observation) -> Data:
    """Return an observation as one graph of all episodes; tensors share their memory with its arrays.

    Fields: ``x`` (V, node features), ``pair`` (V, D, pair features), ``edge_index`` (2, M), ``edge_attr`` (M, edge
    features), ``batch`` (V,) episode, ``local`` (V,) group within the episode, ``first`` (B,) first node of each
    episode, ``current`` (V,) device, ``marked`` (V,) visited, ``offered`` (V, D) devices that are offered,
    ``traversal`` (V,) position in topological order, ``instances`` (B,), ``num_graphs`` B, ``max_nodes`` of an episode.
    """
    data = Data(
        x=torch.from_numpy(observation.node),
        edge_index=torch.from_numpy(observation.arcs),
        edge_attr=torch.from_numpy(observation.edge),
    )
    data.pair = torch.from_numpy(observation.pair)
    data.batch = torch.from_numpy(observation.of)
    data.local = torch.from_numpy(observation.local)
    data.first = torch.from_numpy(observation.first[:-1])
    data.current = torch.from_numpy(observation.current)
    data.marked = torch.from_numpy(observation.marked)
    data.offered = torch.from_numpy(observation.offered)
    data.traversal = torch.from_numpy(observation.traversal)
    data.instances = observation.instances
    data.num_graphs = len(observation.instances)
    data.max_nodes = int(np.diff(observation.first).max())
    return data
