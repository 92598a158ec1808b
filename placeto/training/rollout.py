"""Episodes of a policy in the batched environment, with what a loss needs of them.

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

from placeto.environment.config import EnvConfig
from placeto.environment.instance import InstanceBatch
from placeto.environment.mdp import EnvState, reset, step
from placeto.environment.observation import score_moves
from placeto.policies.base import PairDistribution, answers
from placeto.training.ranks import ALONE, Ranks

MISSING = -1  # device of a label that isn't there


class DivergedError(ValueError):
    """Numbers of the training that are not finite; the message says which."""


@dataclass
class Stopwatch:
    """Seconds spent in each part of an iteration."""

    seconds: dict[str, float] = field(default_factory=lambda: {"simulation": 0.0, "network": 0.0})
    _since: float = field(default_factory=time.perf_counter)

    def lap(self, part: str | None) -> None:
        """Count the time since the last lap for a part (None = for no part)."""
        now = time.perf_counter()
        if part is not None:
            self.seconds[part] += now - self._since
        self._since = now


@dataclass(frozen=True, eq=False)
class Labels:
    """Exact relative changes of the makespan by single moves in one state of every episode."""

    slot: Tensor  # (B * L,) int64, node
    device: Tensor  # (B * L,) int64, `MISSING` where a state has no more moves
    change: Tensor  # (B * L,) float32, (after - before) / before

    def there(self) -> Labels:
        """Those that aren't missing."""
        there = self.device != MISSING
        return Labels(self.slot[there], self.device[there], self.change[there])


@dataclass(frozen=True, eq=False)
class Rollout:
    """T moves of B episodes, one rank's."""

    data: list[Data]  # T observations
    action: Tensor  # (T, B) int64
    log_prob: Tensor  # (T, B) float32, under the policy that acted
    makespan: Tensor  # (T+1, B) float32, relative to the best single device, penalised for memory
    labels: list[Labels]  # T, or empty
    end: EnvState
    simulations: int  # labels included


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
    """Sample moves from the policy.

    Args:
        policy: maps an observation to logits (V, D) and changes (V, D).
        batch: instances of the environment.
        config: order and staying.
        state: where to begin.
        moves: T.
        generator: source of all randomness.
        temperature: of the sampling.
        labels: L, how many moves of each state to simulate for their exact effect: half of them drawn from the
            policy, half uniformly from the legal ones.
        watch: books simulation and network time.
        ranks: the processes that roll out together.
        everyone: (B of all ranks,) instances of all ranks' episodes, of which `state` holds this rank's.
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
    """(V, D) logits of an observation.

    Raises:
        DivergedError: one isn't finite.
        PolicyError: the policy returns anything else.
    """
    logits, _ = answers(policy, data)
    if not logits.isfinite().all():
        raise DivergedError("the policy's answers are not finite")
    return logits


@dataclass(frozen=True)
class _Noise:
    """Draws for the episodes of all ranks, so that no episode depends on how they are divided over ranks."""

    generator: torch.Generator
    shape: tuple[int, int, int]  # episodes of all ranks, nodes of the largest graph, devices of the largest cluster
    ranks: Ranks

    @classmethod
    def of(cls, batch: InstanceBatch, index: np.ndarray, ranks: Ranks, generator: torch.Generator) -> _Noise:
        """For all ranks' episodes, of instances `index`."""
        shape = len(index), int(batch.num_groups[index].max()), int(batch.num_devices[index].max())
        return cls(generator, shape, ranks)

    def exponential(self) -> Tensor:
        """(B of all, G, D) of the exponential law."""
        return torch.empty(self.shape).exponential_(generator=self.generator)

    def gumbel(self) -> Tensor:
        """(B of all, G, D) of the Gumbel law."""
        uniform = torch.rand(self.shape, generator=self.generator)
        return -torch.log(-torch.log(uniform.clamp(1e-9, 1 - 1e-9)))

    def cut(self, noise: Tensor, state: EnvState) -> Tensor:
        """(B, G * D) of this rank's episodes, as wide as they need it."""
        mine = noise[self.ranks.share(len(noise))]
        return mine[:, : state.data.max_nodes, : state.data.legal.shape[1]].flatten(1)


def _label(batch: InstanceBatch, state: EnvState, distribution: PairDistribution, count: int, noise: _Noise) -> Labels:
    """Simulate `count` different moves in each episode's state, or all that it has: (B, L)."""
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
    """Most likely moves, as many in each episode as its graph has nodes: the state after the longest one.

    Makespans and placements, at the end and the best met, of the shorter ones are those at the end of their own sweep.
    """

    def likeliest(data: Data) -> Tensor:
        with torch.no_grad():
            return PairDistribution.from_logits(_logits(policy, data), data).mode()

    return _one_pass(likeliest, batch, config, index, placement)


def random_pass(
    batch: InstanceBatch, config: EnvConfig, index: np.ndarray, placement: np.ndarray, generator: torch.Generator
) -> EnvState:
    """As `greedy_pass`, with each move drawn uniformly from the legal ones."""

    def any_move(data: Data) -> Tensor:
        uniform = PairDistribution.from_logits(torch.zeros(data.legal.shape), data)
        return uniform.sample(torch.empty_like(uniform.log_probs).exponential_(generator=generator))

    return _one_pass(any_move, batch, config, index, placement)


def _one_pass(
    choose: Callable[[Data], Tensor], batch: InstanceBatch, config: EnvConfig, index: np.ndarray, placement: np.ndarray
) -> EnvState:
    """A sweep of moves (B,) chosen from observations."""
    state = own = reset(batch, config, index, placement)
    for _ in range(int(batch.num_groups[index].max())):
        state = step(batch, config, state, choose(state.data).numpy())
        going = state.steps <= batch.num_groups[index]
        own = replace(
            state,
            makespan=np.where(going, state.makespan, own.makespan),
            placement=np.where(going[:, None], state.placement, own.placement),
            best=np.where(going, state.best, own.best),
            best_placement=np.where(going[:, None], state.best_placement, own.best_placement),
        )
    return own
