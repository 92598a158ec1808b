"""Episodes of the placement MDP side by side, with padded arrays, which libraries of reinforcement learning need.

Each episode is about one of several problems. Its groups of ops are moved one after another, as in
`placeto.environment.mdp`. It ends after as many moves as there are groups.

Legend: B episodes, C problems, G groups of the largest problem, D devices of the largest cluster, M arcs between groups
of the problem with the most, A actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from placeto.environment.columns import EDGE, NODE, PAIR
from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import InstanceBatch, make_instance
from placeto.environment.mdp import EnvState, reset, step
from placeto.environment.rewards import find_reward, reward_names
from placeto.errors import PlacerError
from placeto.problem.checks import checked, record_of
from placeto.problem.grouping import expand
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate

NOTHING = -1
"""Number of a group in rows of `arcs` that have no arc."""
LARGEST = 1e6
"""Features are clipped to this size, since spaces of observations need bounds. They are shares and logarithms."""


class Sizes(NamedTuple):
    """The sizes to which arrays are padded."""

    groups: int  # G
    devices: int  # D
    arcs: int  # M

    @classmethod
    def of(cls, problems: Sequence[PlacementProblem]) -> Sizes:
        """The smallest sizes that all of these problems fit into.

        Give it the problems for training and those for testing together, so that one policy takes both.
        """
        instances = [make_instance(problem) for problem in problems]
        return cls(
            max(instance.groups.num_groups for instance in instances),
            max(problem.num_devices for problem in problems),
            max(1, *(instance.pairs.shape[1] for instance in instances)),
        )


class Episodes:
    """B episodes side by side, on which both environments of `placeto.environment.gym` are built.

    Args:
        problems: one of them is drawn for each episode.
        env: who chooses the next node, and which moves are taken back.
        reward: name of a reward of moves, from `placeto list rewards`.
        count: B.
        sizes: the sizes to which arrays are padded; None = those that the problems need.

    Raises:
        PlacerError: there is no problem, a problem has only one device or is larger than `sizes`, or there is no
            reward of this name.
    """

    def __init__(
        self,
        problems: Sequence[PlacementProblem],
        env: EnvConfig,
        reward: str,
        count: int,
        sizes: Sizes | None = None,
    ) -> None:
        listed = [] if isinstance(problems, PlacementProblem) else list(problems)
        if not listed or any(not isinstance(p, PlacementProblem) or p.num_devices < 2 for p in listed):
            raise PlacerError(
                "an environment needs a sequence of at least one problem, each on a cluster of two devices or more"
            )
        if not isinstance(env, EnvConfig):
            raise PlacerError(f"env must be an EnvConfig, not {env!r:.60}")
        checked(vars(env), record_of(EnvConfig), PlacerError, "env", strict=True)
        if reward not in reward_names():
            raise PlacerError(f"reward must be {' or '.join(reward_names())}, not {reward!r:.60}")
        self.batch = InstanceBatch.of([make_instance(problem) for problem in problems])
        self.env, self.reward, self.count = env, find_reward(reward), count
        largest = Sizes.of(problems)
        self.sizes = largest if sizes is None else sizes
        if any(need > size for need, size in zip(largest, self.sizes, strict=True)):
            raise PlacerError(f"sizes must be at least {largest}, not {self.sizes}: take Sizes.of all problems")
        self.starts = np.array([_best_device(problem) for problem in problems])
        self.makespan = np.zeros(
            (count, self.sizes.groups + 1), np.float32
        )  # relative, after each move of the episodes
        self.moves = np.zeros(count, np.int64)
        self.state: EnvState | None = None

    @property
    def actions(self) -> int:
        """A, the number of actions.

        An action is group * D + device. With the topological order it is only the device, for the current group.
        """
        return self.sizes.devices if self._fixed else self.sizes.groups * self.sizes.devices

    @property
    def _fixed(self) -> bool:
        return self.env.order == "topological"

    @property
    def going(self) -> EnvState:
        """The state of the episodes.

        Raises:
            PlacerError: the episodes haven't begun.
        """
        if self.state is None:
            raise PlacerError("the episodes haven't begun: call reset() first")
        return self.state

    def begin(self, rows: np.ndarray, index: np.ndarray, placement: np.ndarray | None = None) -> None:
        """Begin episodes.

        Args:
            rows: (B,) bool, which episodes begin; all True the first time.
            index: (B,) int64, number of each episode's problem.
            placement: (B, G) int64, their first placements; None = all ops on the best single device.
        """
        if placement is None:
            placement = np.repeat(self.starts[index][:, None], self.sizes.groups, 1)
        if self.state is None or rows.all():
            self.state = reset(self.batch, self.env, index, placement)
        else:
            fresh = np.zeros((self.count, self.sizes.groups), bool)
            self.state = self._changed(self.state, rows, index, placement, fresh)
        self.moves[rows] = 0
        self.makespan[rows, 0] = self.state.makespan[rows]

    def move(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Make a move in each episode; returns its reward (B,) float32, and whether the episode is over (B,) bool.

        A move that isn't legal changes nothing, but counts as a move.

        Args:
            action: (B,) int64, below A.

        Raises:
            PlacerError: an action is out of this range, or an episode is over.
        """
        before, mask, action = self.going, self.mask(), np.asarray(action)
        if (self.moves >= self.horizon).any():
            raise PlacerError("the episode is over: call reset() to begin another one")
        whole = action.dtype.kind in "iu"
        if not whole or action.shape != (self.count,) or action.min() < 0 or action.max() >= self.actions:
            raise PlacerError(f"{self.count} actions from 0 to {self.actions - 1} are needed, not {action!r:.60}")
        illegal = ~mask[np.arange(self.count), action]
        action = np.where(illegal, mask.argmax(1), action)
        group, device = self._turn() if self._fixed else action // self.sizes.devices, action % self.sizes.devices
        self.state = step(self.batch, self.env, before, group * before.data.legal.shape[1] + device)
        if illegal.any():
            back = self._changed(self.state, illegal, before.index, before.placement, before.visited)
            best = np.where(illegal, before.best, back.best)
            placement = np.where(illegal[:, None], before.best_placement, back.best_placement)
            self.state = replace(back, best=best, best_placement=placement)
        self.moves += 1
        self.makespan[np.arange(self.count), self.moves] = self.state.makespan
        return self._worth(), self.moves == self.horizon

    @property
    def horizon(self) -> np.ndarray:
        """(B,) int64, number of moves in each episode: the number of its groups."""
        return self.batch.num_groups[self.going.index]

    def _worth(self) -> np.ndarray:
        """(B,) rewards of the last moves, computed as if the makespan then stayed the same to the episode's end."""
        worth = np.zeros(self.count, np.float32)
        for horizon in np.unique(self.horizon):
            rows = np.flatnonzero(self.horizon == horizon)
            so_far = np.minimum(np.arange(horizon + 1)[:, None], self.moves[rows])  # (T+1, rows)
            rewards = self.reward(torch.from_numpy(self.makespan[rows, so_far]))
            worth[rows] = rewards.numpy()[self.moves[rows] - 1, np.arange(len(rows))]
        return worth

    def _changed(
        self, state: EnvState, rows: np.ndarray, index: np.ndarray, placement: np.ndarray, visited: np.ndarray
    ) -> EnvState:
        """Return a state in which some episodes begin anew, with their first placement as the best so far.

        Args:
            state: the state of all episodes.
            rows: (B,) bool, which episodes begin anew.
            index: (B,) number of each episode's problem; like the rest, it is used only where `rows` is set.
            placement: (B, G) device of each group.
            visited: (B, G) bool, groups that were moved in this sweep.
        """
        wide = rows[:, None]
        new = reset(
            self.batch,
            self.env,
            np.where(rows, index, state.index),
            np.where(wide, placement, state.placement),
            np.where(wide, visited, state.visited),
        )
        best = np.where(rows, new.best, state.best)
        return replace(new, best=best, best_placement=np.where(wide, new.best_placement, state.best_placement))

    def _turn(self) -> np.ndarray:
        """(B,) int64, the current group of each episode; only with the topological order."""
        state = self.going
        return state.data.local.numpy()[state.data.x[:, NODE.is_current].numpy() > 0]

    def mask(self) -> np.ndarray:
        """(B, A) bool, which actions are legal."""
        data = self.going.data
        legal = np.zeros((self.count, self.sizes.groups, self.sizes.devices), bool)
        legal[data.batch.numpy(), data.local.numpy(), : data.legal.shape[1]] = data.legal.numpy()
        return legal[np.arange(self.count), self._turn()] if self._fixed else legal.reshape(self.count, -1)

    def observation(self) -> dict[str, np.ndarray]:
        """Return the observations of all episodes, padded with 0; columns are those of `placeto.environment.columns`.

        "node" (B, G, node features), "pair" (B, G, D, pair features) and "edge" (B, M, edge features) are float32.
        "arcs" (B, M, 2) int64 says from which group to which each arc leads, -1 where there is none. "present" (B, G)
        int8 is 1 for groups, and 0 for padding.
        """
        data = self.going.data
        episode, local = data.batch.numpy(), data.local.numpy()
        node = np.zeros((self.count, self.sizes.groups, len(NODE)), np.float32)
        pair = np.zeros((self.count, self.sizes.groups, self.sizes.devices, len(PAIR)), np.float32)
        edge = np.zeros((self.count, self.sizes.arcs, len(EDGE)), np.float32)
        arcs = np.full((self.count, self.sizes.arcs, 2), NOTHING, np.int64)
        present = np.zeros((self.count, self.sizes.groups), np.int8)
        node[episode, local], present[episode, local] = data.x.numpy(), 1
        pair[episode, local, : data.pair.shape[1]] = data.pair.numpy()
        ends = data.edge_index.numpy()
        row = episode[ends[0]]
        place = np.arange(len(row)) - np.searchsorted(row, row)
        edge[row, place], arcs[row, place] = data.edge_attr.numpy(), local[ends].T
        seen = {"node": node, "pair": pair, "edge": edge}
        return {name: x.clip(-LARGEST, LARGEST) for name, x in seen.items()} | {"arcs": arcs, "present": present}

    def info(self) -> dict[str, np.ndarray]:
        """Return further arrays on each episode.

        "problem" (B,) is the number of its problem. "makespan_us" (B,) and "best_us" (B,) are its makespan and the best
        so far, penalised for memory. "action_mask" (B, A) is `mask`.
        """
        state = self.going
        single = self.batch.single_us[state.index]
        return {
            "problem": state.index.copy(),
            "makespan_us": state.makespan * single,
            "best_us": state.best * single,
            "action_mask": self.mask(),
        }

    def best_placement(self, row: int) -> np.ndarray:
        """(N,) int64, device of each op in the best placement so far of episode `row`."""
        groups = self.batch.instances[self.going.index[row]].groups
        return expand(groups, self.going.best_placement[row, : groups.num_groups])


def _best_device(problem: PlacementProblem) -> int:
    """The device on which all ops take the least time, among the devices with memory for them if there are any."""
    schedules = [simulate(problem, np.full(problem.num_ops, d, np.int64)) for d in range(problem.num_devices)]
    return min(range(problem.num_devices), key=lambda d: (not schedules[d].fits, schedules[d].makespan_us))
