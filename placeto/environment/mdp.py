"""The placement MDP, batched: B episodes over different graphs advance together.

State: a graph, its current placement, the schedule of this placement, visited marks. Action: a node (group of ops) and
a device for it. One sweep visits every node once. The result is the best placement met. Addanki et al. 2019, section
3.1.

Legend: B episodes, G groups of the largest graph of the batch, D devices of the largest cluster, V nodes of all
episodes together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from placeto.environment.columns import NODE
from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import InstanceBatch
from placeto.environment.observation import observe
from placeto.environment.tensors import to_data
from placeto.problem.grouping import expand
from placeto.simulator.memory import penalised


@dataclass(frozen=True, eq=False)
class EnvState:
    """State of B episodes. Makespans are penalised for memory and relative to the best single device."""

    index: np.ndarray  # (B,) int64, which instance of the batch each episode is about
    placement: np.ndarray  # (B, G) int64, device of each group
    visited: np.ndarray  # (B, G) bool, groups that were moved in this sweep
    steps: np.ndarray  # (B,) int64, number of moves so far
    makespan: np.ndarray  # (B,) float64, relative, of `placement`
    met: np.ndarray  # (B,) float64, relative, after the last move, even if this was then taken back
    best: np.ndarray  # (B,) float64, relative, the best so far
    best_placement: np.ndarray  # (B, G) int64, the placement with makespan `best`
    data: Data  # observation of all episodes together, see `to_data`


def reset(
    batch: InstanceBatch,
    config: EnvConfig,
    index: np.ndarray,
    placement: np.ndarray,
    visited: np.ndarray | None = None,
) -> EnvState:
    """Begin B episodes at the given group placements.

    Args:
        batch: the instances (graph x cluster x groups).
        config: its `order` is used.
        index: (B,) instance of each episode.
        placement: (B, G) device of each group; columns beyond an instance's groups are ignored.
        visited: (B, G) bool, groups that were moved earlier in this sweep; none if not given.
    """
    visited = np.zeros(placement.shape, bool) if visited is None else visited
    steps = visited.sum(1)
    data, makespan = _observe(batch, index, placement, visited, steps)
    data.legal = _legal(batch, config, data, index, steps)
    return EnvState(index, placement, visited, steps, makespan, makespan, makespan, placement, data)


def step(batch: InstanceBatch, config: EnvConfig, state: EnvState, action: np.ndarray) -> EnvState:
    """Move one node in every episode, and take the move back where `config.tolerance` says so.

    A move that is taken back counts as a visit and as a simulation.

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
    data, makespan = _observe(batch, state.index, placement, visited, steps)
    better = makespan < state.best
    best_placement = np.where(better[:, None], placement, state.best_placement)
    best = np.where(better, makespan, state.best)
    best_so_far = makespan
    if config.tolerance is not None:
        back = makespan > best * (1.0 + config.tolerance)
        _take_back(data, state.data, torch.from_numpy(back))
        placement = np.where(back[:, None], state.placement, placement)
        makespan = np.where(back, state.makespan, makespan)
    data.legal = _legal(batch, config, data, state.index, steps)
    return EnvState(state.index, placement, visited, steps, makespan, best_so_far, best, best_placement, data)


def _observe(
    batch: InstanceBatch, index: np.ndarray, placement: np.ndarray, visited: np.ndarray, steps: np.ndarray
) -> tuple[Data, np.ndarray]:
    observation, makespan_us, overflow = observe(batch, index, placement, visited, steps)
    if batch.measure is not None:
        for row, number in enumerate(index.tolist()):
            groups = batch.instances[number].groups
            makespan_us[row] = batch.measure(number, expand(groups, placement[row, : groups.num_groups]))
    return to_data(observation), penalised(makespan_us, overflow) / batch.single_us[index]


def _take_back(data: Data, before: Data, back: Tensor) -> None:
    """Put the observation before the move back where `back` (B,) bool is set, except `visited` and `steps_left`."""
    nodes = back[data.batch]
    marks = [NODE.visited, NODE.steps_left]
    kept = data.x[:, marks]
    data.x = torch.where(nodes[:, None], before.x, data.x)
    data.x[:, marks] = kept
    data.pair = torch.where(nodes[:, None, None], before.pair, data.pair)
    data.offered = torch.where(nodes[:, None], before.offered, data.offered)
    data.edge_attr = torch.where(nodes[data.edge_index[0]][:, None], before.edge_attr, data.edge_attr)
    data.current = torch.where(nodes, before.current, data.current)


def _legal(batch: InstanceBatch, config: EnvConfig, data: Data, index: np.ndarray, steps: np.ndarray) -> Tensor:
    """(V, D) bool, which moves are legal. With the topological order, set the column `is_current` of `data` as well."""
    if config.order == "topological":
        sweep = torch.from_numpy(steps % batch.num_groups[index])
        reached = data.traversal == sweep[data.batch]
        data.x[:, NODE.is_current] = reached.to(data.x.dtype)
        return data.offered & reached[:, None]
    legal = data.offered & ~data.marked[:, None]
    return legal & ~torch.nn.functional.one_hot(data.current, legal.shape[1]).bool()
