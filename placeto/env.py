"""The placement MDP, batched: B episodes over different graphs advance together.

State: graph, current placement, the schedule that it gives, visited marks. Action: a node (group of ops) and a device
for it. One sweep visits every node once; the best placement met is the result. Addanki et al. 2019, section 3.1.

Legend: B episodes, G groups of the largest graph of the batch, D devices of the largest cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch_geometric.data import Data

from placeto.features import NODE_INDEX, InstanceBatch, observe, penalised


@dataclass(frozen=True)
class EnvConfig:
    """How an episode runs."""

    order: Literal["policy", "topological"] = "policy"
    """Who picks the next node: the policy, or the paper's fixed traversal in topological order."""
    stay: bool = False
    """Whether leaving a node where it is counts as a move (the topological order always allows it)."""


@dataclass(frozen=True, eq=False)
class EnvState:
    """State of B episodes. Makespans are penalised for memory and relative to the best single device."""

    index: np.ndarray  # (B,) int64, which instance of the batch each episode is about
    placement: np.ndarray  # (B, G) int64, device of each group
    visited: np.ndarray  # (B, G) bool
    steps: np.ndarray  # (B,) int64, moves made
    makespan: np.ndarray  # (B,) float64, relative
    best: np.ndarray  # (B,) float64, relative, the best met
    best_placement: np.ndarray  # (B, G) int64
    data: Data  # observation of all episodes together, see `features.observe`

    @property
    def simulations(self) -> int:
        """Simulations that it took to get here: one for the start and one a move, for each episode."""
        return int(self.steps.sum()) + len(self.steps)


def reset(batch: InstanceBatch, config: EnvConfig, index: np.ndarray, placement: np.ndarray) -> EnvState:
    """Begin B episodes at the given group placements.

    Args:
        batch: the instances (graph x cluster x groups).
        config: order and staying.
        index: (B,) instance of each episode.
        placement: (B, G) device of each group; columns beyond an instance's groups are ignored.
    """
    visited = np.zeros(placement.shape, bool)
    steps = np.zeros(len(index), np.int64)
    data, makespan = _observe(batch, config, index, placement, visited, steps)
    return EnvState(index, placement, visited, steps, makespan, makespan, placement, data)


def step(batch: InstanceBatch, config: EnvConfig, state: EnvState, action: np.ndarray) -> EnvState:
    """Move one node in every episode.

    Args:
        batch: as in `reset`.
        config: as in `reset`.
        state: where the episodes are.
        action: (B,) int64, group * D + device, as `PairDistribution` gives them.

    Raises:
        ValueError: an action that is not legal in the state; the message names the episode.
    """
    devices = state.data.legal.shape[1]
    rows, group, device = np.arange(len(action)), action // devices, action % devices
    slot = state.data.first.numpy() + group
    legal = state.data.legal.numpy()[slot, device]
    if not legal.all():
        bad = int(np.flatnonzero(~legal)[0])
        raise ValueError(f"episode {bad}: moving group {group[bad]} to device {device[bad]} is not legal there")
    placement, visited = state.placement.copy(), state.visited.copy()
    placement[rows, group] = device
    visited[rows, group] = True
    steps = state.steps + 1
    visited[steps % batch.num_groups[state.index] == 0] = False  # a sweep is over: the next one begins
    data, makespan = _observe(batch, config, state.index, placement, visited, steps)
    better = makespan < state.best
    best_placement = np.where(better[:, None], placement, state.best_placement)
    best = np.where(better, makespan, state.best)
    return EnvState(state.index, placement, visited, steps, makespan, best, best_placement, data)


def _observe(
    batch: InstanceBatch,
    config: EnvConfig,
    index: np.ndarray,
    placement: np.ndarray,
    visited: np.ndarray,
    steps: np.ndarray,
) -> tuple[Data, np.ndarray]:
    data, makespan_us, overflow = observe(batch, index, placement, visited, steps)
    fixed = config.order == "topological"
    legal = data.exists & ~data.marked[:, None]
    if fixed:
        sweep = torch.from_numpy(steps % batch.num_groups[index])
        here = data.traversal == sweep[data.batch]
        data.x[:, NODE_INDEX["is_current"]] = here.to(data.x.dtype)
        legal = data.exists & here[:, None]
    elif not config.stay:
        legal = legal & ~torch.nn.functional.one_hot(data.current, legal.shape[1]).bool()
    data.legal = legal
    return data, penalised(makespan_us, overflow) / batch.single_us[index]
