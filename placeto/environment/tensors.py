"""Observations as tensors.

Legend: B episodes, V nodes of all episodes together, M arcs, D devices, G groups of the largest graph.
"""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data

from placeto.environment.observation import Observation


def to_data(seen: Observation) -> Data:
    """Return an observation as one graph of all episodes; tensors share their memory with its arrays.

    Fields: ``x`` (V, node features), ``pair`` (V, D, pair features), ``edge_index`` (2, M), ``edge_attr`` (M, edge
    features), ``batch`` (V,) episode, ``local`` (V,) group within the episode, ``first`` (B,) first node of each
    episode, ``current`` (V,) device, ``marked`` (V,) visited, ``offered`` (V, D) devices that are offered,
    ``traversal`` (V,) position in topological order, ``instances`` (B,), ``num_graphs`` B, ``max_nodes`` of an episode.
    """
    data = Data(
        x=torch.from_numpy(seen.node),
        edge_index=torch.from_numpy(seen.arcs),
        edge_attr=torch.from_numpy(seen.edge),
    )
    data.pair = torch.from_numpy(seen.pair)
    data.batch = torch.from_numpy(seen.of)
    data.local = torch.from_numpy(seen.local)
    data.first = torch.from_numpy(seen.first[:-1])
    data.current = torch.from_numpy(seen.current)
    data.marked = torch.from_numpy(seen.marked)
    data.offered = torch.from_numpy(seen.offered)
    data.traversal = torch.from_numpy(seen.traversal)
    data.instances = seen.instances
    data.num_graphs = len(seen.instances)
    data.max_nodes = int(np.diff(seen.first).max())
    return data
