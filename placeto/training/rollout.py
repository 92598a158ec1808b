"""Episodes of an iterative policy in the batched environment, and the labels of moves in their states.

Legend: T moves, B episodes, L labelled moves a state, V nodes of all episodes together, D devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import InstanceBatch
from placeto.environment.mdp import EnvState, reset, step
from placeto.environment.observation import score_moves
from placeto.errors import TrainingError
from placeto.policies.pair_policy import PairDistribution, answers
from placeto.training.ranks import ALONE, Ranks

MISSING = -1  # in place of the device, where a state has fewer labels than the array has columns


class DivergedError(TrainingError):
    """Numbers of the training are not finite; the message says which."""


@dataclass
class Stopwatch:
    """Seconds spent in each part of an iteration."""

    seconds: dict[str, float] = field(default_factory=lambda: {"simulation": 0.0, "network": 0.0})
    _since: float = field(default_factory=time.perf_counter)  # when the last lap ended

    def lap(self, part: str | None) -> None:
        """Add the time since the last lap to a part. None = to no part."""
        now = time.perf_counter()
        if part is not None:
            self.seconds[part] += now - self._since
        self._since = now


@dataclass(frozen=True, eq=False)
class Labels:
    """Exact relative changes of the makespan by single moves in one state of every episode."""

    slot: Tensor  # (B * L,) int64, the node that is moved
    device: Tensor  # (B * L,) int64, the device that the node is moved to; `MISSING` where a state has no more moves
    change: Tensor  # (B * L,) float32, (makespan after - before) / before; 0 where the device is `MISSING`

    def there(self) -> Labels:
        """Return the labels whose device isn't `MISSING`."""
        there = self.device != MISSING
        return Labels(self.slot[there], self.device[there], self.change[there])


@dataclass(frozen=True, eq=False)
class Rollout:
    """T moves of B episodes on one rank."""

    data: list[Data]  # T observations, before each move
    action: Tensor  # (T, B) int64, action numbers, node * D + device
    log_prob: Tensor  # (T, B) float32, log-probabilities of the actions when they were drawn
    makespan: Tensor  # (T+1, B) float32, relative to the best single device, penalised for memory
    labels: list[Labels]  # T labels of the states before each move, or none
    end: EnvState  # the state after the last move
    simulations: int  # simulations of starts, moves and labels


def rollout(
    policy: nn.Module,
    batch: InstanceBatch,
    config: EnvConfig,
    state: EnvState,
    moves: int,
    generator: torch.Generator,
    *,
    temperature: float = 1.0,
    labels: int = 0,
    watch: Stopwatch | None = None,
    ranks: Ranks = ALONE,
    everyone: np.ndarray | None = None,
) -> Rollout:
    """Run episodes whose moves are drawn from the policy.

    Args:
        policy: maps an observation to logits (V, D) and changes (V, D).
        batch: instances of the environment.
        config: order of the nodes, and which moves are taken back.
        state: the state in which the episodes begin.
        moves: T.
        generator: source of all randomness.
        temperature: the logits are divided by it before moves are drawn.
        labels: L, how many different moves of each state are simulated for their exact effect. Half of them are drawn
            from the policy, and half uniformly from the other legal moves.
        watch: the times of simulations and of the network are added to it.
        ranks: the processes that run episodes together.
        everyone: (B of all ranks,) int64, instances of the episodes of all ranks; None = `state` has all episodes.

    Raises:
        DivergedError: a logit isn't finite.
        PlacerError: the policy doesn't return logits and changes.
    """
    watch = watch or Stopwatch()
    noise = _Noise.of(batch, state.index if everyone is None else everyone, ranks, generator)
    data, actions, log_probs, makespans, labelled = [], [], [], [state.makespan], []
    simulations = len(state.index)
    watch.lap(None)
    for _ in range(moves):
        with torch.no_grad():
            distribution = PairDistribution.from_logits(_logits(policy, state.data), state.data, temperature)
            action = distribution.sample(noise.cut(noise.exponential(), state))
        data.append(state.data)
        actions.append(action)
        log_probs.append(distribution.log_prob(action))
        watch.lap("network")
        if labels:
            labelled.append(_label(batch, state, distribution, labels, noise))
            simulations += int((labelled[-1].device != MISSING).sum())
        state = step(batch, config, state, action.numpy())
        simulations += len(state.index)
        makespans.append(state.makespan)
        watch.lap("simulation")
    relative = torch.from_numpy(np.stack(makespans).astype(np.float32))
    return Rollout(data, torch.stack(actions), torch.stack(log_probs), relative, labelled, state, simulations)


def _logits(policy: nn.Module, data: Data) -> Tensor:
    """Return the logits (V, D) of an observation.

    Raises:
        DivergedError: a logit isn't finite.
        PlacerError: the policy doesn't return logits and changes.
    """
    logits, _ = answers(policy, data)
    if not logits.isfinite().all():
        raise DivergedError("the policy's answers are not finite")
    return logits


@dataclass(frozen=True)
class _Noise:
    """Random numbers for the episodes of all ranks, so that no episode depends on their division over the ranks."""

    generator: torch.Generator
    shape: tuple[int, int, int]  # episodes of all ranks, nodes of the largest graph, devices of the largest cluster
    ranks: Ranks

    @classmethod
    def of(cls, batch: InstanceBatch, index: np.ndarray, ranks: Ranks, generator: torch.Generator) -> _Noise:
        """Make the noise for the episodes of all ranks, whose instances are `index` (B of all ranks,)."""
        shape = len(index), int(batch.num_groups[index].max()), int(batch.num_devices[index].max())
        return cls(generator, shape, ranks)

    def exponential(self) -> Tensor:
        """Draw (B of all ranks, G, D) numbers from the exponential distribution of mean 1."""
        return torch.empty(self.shape).exponential_(generator=self.generator)

    def gumbel(self) -> Tensor:
        """Draw (B of all ranks, G, D) numbers from the standard Gumbel distribution."""
        uniform = torch.rand(self.shape, generator=self.generator)
        return -torch.log(-torch.log(uniform.clamp(1e-9, 1 - 1e-9)))

    def cut(self, noise: Tensor, state: EnvState) -> Tensor:
        """Return the noise (B, G * D) of this rank's episodes, with G and D of their largest graph and cluster."""
        mine = noise[self.ranks.share(len(noise))]
        return mine[:, : state.data.max_nodes, : state.data.legal.shape[1]].flatten(1)


def _label(batch: InstanceBatch, state: EnvState, distribution: PairDistribution, count: int, noise: _Noise) -> Labels:
    """Label L = `count` different moves of each episode's state, or all of them if it has fewer."""
    log_probs, devices = distribution.log_probs, distribution.devices
    most, width = count // 2, log_probs.shape[1]
    legal = log_probs > -torch.inf
    gumbel = noise.gumbel()
    noisy = log_probs + noise.cut(gumbel, state)
    likely = noisy.topk(min(most, width), -1).indices  # Gumbel top-k: a draw without replacement
    other = noise.cut(gumbel.flip(1, 2), state).masked_fill(~legal, -torch.inf).scatter(-1, likely, -torch.inf)
    uniform = other.topk(min(count - most, width), -1)
    chosen = torch.cat([likely, uniform.indices], -1)
    there = torch.cat([legal.gather(-1, likely), uniform.values > -torch.inf], -1)
    group, device = chosen // devices, torch.where(there, chosen % devices, MISSING)
    after = score_moves(batch, state.index, state.placement, group.numpy(), device.numpy())
    before = (state.makespan * batch.single_us[state.index])[:, None]
    change = torch.from_numpy(np.where(there, (after - before) / before, 0.0).astype(np.float32))
    return Labels((state.data.first[:, None] + group).flatten(), device.flatten(), change.flatten())


def greedy_pass(
    policy: nn.Module, batch: InstanceBatch, config: EnvConfig, index: np.ndarray, placement: np.ndarray
) -> EnvState:
    """Make the most likely moves in each episode, as many as its graph has nodes, and return the final state.

    The episodes of smaller graphs go on until the largest one ends. Yet makespan, placement, best makespan and best
    placement of the returned state are those after as many moves as each graph has nodes.

    Args:
        policy: maps an observation to logits (V, D) and changes (V, D).
        batch: instances of the environment.
        config: order of the nodes, and which moves are taken back.
        index: (B,) int64, instance of each episode.
        placement: (B, G) int64, device of each group at the beginning.

    Raises:
        DivergedError: a logit isn't finite.
        PlacerError: the policy doesn't return logits and changes.
    """

    def likeliest(data: Data) -> Tensor:
        with torch.no_grad():
            return PairDistribution.from_logits(_logits(policy, data), data).mode()

    return _one_pass(likeliest, batch, config, index, placement)


def random_pass(
    batch: InstanceBatch, config: EnvConfig, index: np.ndarray, placement: np.ndarray, generator: torch.Generator
) -> EnvState:
    """Do the same as `greedy_pass`, but with each move drawn uniformly from the legal moves."""

    def any_move(data: Data) -> Tensor:
        uniform = PairDistribution.from_logits(torch.zeros(data.legal.shape), data)
        return uniform.sample(torch.empty_like(uniform.log_probs).exponential_(generator=generator))

    return _one_pass(any_move, batch, config, index, placement)


def _one_pass(
    choose: Callable[[Data], Tensor], batch: InstanceBatch, config: EnvConfig, index: np.ndarray, placement: np.ndarray
) -> EnvState:
    """Run one pass; see `greedy_pass`. `choose` maps an observation to action numbers (B,)."""
    state = frozen = reset(batch, config, index, placement)
    for _ in range(int(batch.num_groups[index].max())):
        state = step(batch, config, state, choose(state.data).numpy())
        going = state.steps <= batch.num_groups[index]
        frozen = replace(
            state,
            makespan=np.where(going, state.makespan, frozen.makespan),
            placement=np.where(going[:, None], state.placement, frozen.placement),
            best=np.where(going, state.best, frozen.best),
            best_placement=np.where(going[:, None], state.best_placement, frozen.best_placement),
        )
    return frozen
