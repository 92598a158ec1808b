"""The constructive policy: it visits the units once, in topological order, and begins with empty devices.

A graph neural network embeds all units once. Then each unit in turn gets the device that a small network scores best.
The network reads pairs of the unit and a device: what the device has so far, and what the unit exchanges with it. It
needs no schedule, and it scores each pair by itself, so it can place on any number and mix of devices. Constructive
policies with the reward at the end, and the mean over samples of the same problem as the reward baseline, come from
routing: Kool et al. 2019 (arXiv 1803.08475); Kwon et al., "POMO", 2020 (arXiv 2010.16065).

Legend: U units, M arcs between units, D devices, S slots of time, H hidden, K samples, X units that are scored at once,
F features of a pair, C numbers that a device sums up, N numbers that an arc carries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence

from placeto.plumbing.ranges import Depth, Width
from placeto.policies.message_passing import EdgeMessagePassing, mlp
from placeto.policies.one_shot.inputs import DEVICE_FEATURES, SLOTS, UNIT_FEATURES, OneShotInput, UnitKind
from placeto.policies.one_shot.one_shot_policy import Noise, OneShotPolicy, Sample
from placeto.policies.one_shot.unit_layers import log_prob_and_entropy

STATIC = len(UNIT_FEATURES) + 6 + 2 * SLOTS  # features of a unit
KNOWN = 4 + len(DEVICE_FEATURES)  # features of a pair that don't depend on earlier decisions
PAIR = 25  # features of a pair that depend on them
COUNT, LOAD, MEMORY, PROFILE, EMBEDDING = 0, 1, 2, 4, 4 + 2 * SLOTS  # columns of what a device sums up
MESSAGE = 4  # first column of the message in what an arc carries
FINE = 1e-3  # logarithms become linear below this share of the time of one device


@dataclass(frozen=True)
class ConstructiveConfig:
    """What the constructive policy is made of."""

    units: UnitKind = "groups"
    """What gets a device: groups of ops, co-located ops ("paper"), or ops alone."""
    hidden: Width = 64
    """Width of all layers."""
    rounds: Depth = 3
    """Rounds of messages along and against the arcs; 0 = none."""


@dataclass(frozen=True)
class Units:
    """X units that are scored at once: one of each of X graphs, or all units of one graph."""

    known: Tensor  # (X, D, H), the part of the scores' first layer that no earlier decision changes
    added: Tensor  # (X, D, C), what a device gets if the unit is placed on it
    slots: Tensor  # (X, 2 S, 2), share of the unit's time in each slot; a matrix for each of the two profiles
    exchanged: Tensor  # (X, 1, 1), time of all transfers of the unit, over `FINE`
    links: Tensor  # (X, D, D), as in `OneShotInput`


@dataclass(frozen=True)
class Arcs:
    """The arcs between units, from the unit that is placed later to the one that is placed earlier."""

    later: Tensor  # (M,) int64
    earlier: Tensor  # (M,) int64
    carried: Tensor  # (M, N): times and delays of transfers to and from the later unit, over `FINE`; a message


class ConstructivePolicy(OneShotPolicy):
    """The networks of the constructive policy: its decisions are the devices of the units, in their order."""

    def __init__(self, config: ConstructiveConfig) -> None:
        super().__init__(config.units, math.inf)
        hidden = config.hidden
        self.encoder = mlp([STATIC, hidden, hidden])
        self.rounds = nn.ModuleList(EdgeMessagePassing(hidden, 2) for _ in range(config.rounds))
        self.norm = nn.LayerNorm(hidden)
        self.unit = nn.Linear(hidden, hidden)
        self.resident = nn.Linear(hidden, hidden, bias=False)
        self.neighbour = nn.Linear(hidden, hidden, bias=False)
        self.known = nn.Linear(KNOWN, hidden, bias=False)
        self.pair = nn.Linear(PAIR, hidden, bias=False)
        self.middle = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, 1, bias=False)
        nn.init.normal_(self.head.weight, std=0.1 * hidden**-0.5)  # an untrained policy is nearly uniform

    @torch.no_grad()
    def soften(self, temperature: float) -> None:
        """Divide the logits by a temperature, by changing parameters."""
        self.head.weight.div_(temperature)

    def side_by_side(self, graphs: Sequence[OneShotInput], noise: Sequence[Noise]) -> list[Sample]:
        """Choose devices unit by unit, for all samples of all graphs; see `OneShotPolicy.decide`."""
        described = [self.describe(graph) for graph in graphs]
        draw = pad_sequence([each.transpose(0, 1) for (each,) in noise])  # (U, B, K, D): steps x graphs
        steps, count, samples, devices = draw.shape
        fields = ("known", "added", "slots", "exchanged", "links")
        padded = {name: pad_sequence([getattr(units, name) for units, _ in described]) for name in fields}
        graph = torch.cat([torch.full_like(arcs.later, b) for b, (_, arcs) in enumerate(described)])
        later = torch.cat([arcs.later for _, arcs in described])
        order = later.argsort(stable=True)
        bounds = torch.searchsorted(later[order], torch.arange(steps + 1, device=later.device)).tolist()
        earlier = torch.cat([arcs.earlier for _, arcs in described])[order]
        carried, graph = torch.cat([arcs.carried for _, arcs in described])[order], graph[order]
        action = torch.zeros(steps, count, samples, dtype=torch.int64, device=draw.device)
        logits = torch.zeros_like(draw)
        placed = draw.new_zeros(count, samples, devices, padded["added"].shape[-1])
        sizes = [g.num_units for g in graphs]
        for step in range(steps):
            left = sum(size > step for size in sizes)
            now = Units(**{name: tensor[step, :left] for name, tensor in padded.items()})
            part = slice(bounds[step], bounds[step + 1])
            near = heard(graph[part], action[earlier[part], graph[part]], carried[part], (left, devices))
            logits[step, :left] = self._logits(now, placed[:left], near)
            action[step, :left] = (logits[step, :left] + draw[step, :left]).argmax(-1)
            placed[:left] += one_hot(action[step, :left], devices)[..., None] * now.added[:, None]
        results = []
        for b, size in enumerate(sizes):
            chosen = action[:size, b].T.contiguous()
            log_prob, _ = log_prob_and_entropy(logits[:size, b].transpose(0, 1), chosen)
            results.append(Sample(chosen, log_prob, chosen))
        return results

    def score(self, graph: OneShotInput, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (K, U) and mean entropies (K,) in nats, for all units at once."""
        units, arcs = self.describe(graph)
        chosen = one_hot(action.T, graph.num_devices).to(units.added.dtype)  # (U, K, D)
        added = chosen[..., None] * units.added[:, None]
        near = heard(arcs.later, action.T[arcs.earlier], arcs.carried, (graph.num_units, graph.num_devices))
        logits = self._logits(units, added.cumsum(0) - added, near)
        log_prob, entropy = log_prob_and_entropy(logits.transpose(0, 1), action)
        return log_prob, entropy.mean(-1)

    def describe(self, graph: OneShotInput) -> tuple[Units, Arcs]:
        """Embed the units of a graph, and return what decisions read of them and of the arcs."""
        devices, (source, target) = graph.num_devices, graph.edges
        transfers = torch.stack(
            [torch.zeros_like(graph.work).index_add_(0, end, graph.transfer) for end in graph.edges], 1
        )
        x = self.encoder(unit_features(graph, transfers))
        arc_features = torch.stack([graph.transfer, fine_log(graph.transfer)], -1)
        for messages in self.rounds:
            x = messages(x, graph.edges, arc_features)
        x = self.norm(x)
        load, position = devices * graph.time, torch.linspace(0, 1, len(x), device=x.device)[:, None]
        speed = graph.time / graph.time.mean(1, keepdim=True).clamp(min=1e-9) - 1
        pairs = torch.stack([load, fine_log(graph.time), speed, position.expand_as(load)], -1)
        known = self.unit(x)[:, None] + self.known(torch.cat([pairs, graph.device.expand(len(x), -1, -1)], -1))
        moved = torch.cat([graph.profile.flatten(1), self.resident(x)], -1)[:, None].expand(-1, devices, -1)
        added = torch.cat([torch.ones_like(load)[..., None], load[..., None], graph.memory, moved], -1)
        parts = graph.profile / graph.profile.sum(-1, keepdim=True).clamp(min=1e-9) * devices
        slots = (parts[..., None] * torch.eye(2, device=x.device)[:, None]).flatten(1, 2)
        exchanged = transfers.sum(1) / FINE
        units = Units(known, added, slots, exchanged[:, None, None], graph.links.expand(len(x), -1, -1))
        later, earlier, time = torch.maximum(source, target), torch.minimum(source, target), graph.transfer / FINE
        both = torch.stack([time, graph.delay / FINE], -1)
        inward = both * (target == later)[:, None]
        message = (time / exchanged[later].clamp(min=1e-6))[:, None] * self.neighbour(x)[earlier]
        return units, Arcs(later, earlier, torch.cat([inward, both - inward, message], -1))

    def _logits(self, units: Units, placed: Tensor, near: Tensor) -> Tensor:
        """Return the logits (X, K, D) of the devices for each unit.

        Args:
            units: the units.
            placed: (X, K, D, C) what each device sums up over the units that it has.
            near: (X, K, D, N) what the unit exchanges with each device.
        """
        count, load = placed[..., COUNT], placed[..., LOAD]
        sums = placed[..., :PROFILE] + units.added[:, None, :, :PROFILE]  # with this unit
        after, memory = sums[..., LOAD], sums[..., MEMORY:].cumsum(-1)  # what is resident; and with all tensors made
        there, own = (x[..., PROFILE:EMBEDDING] for x in (placed, units.added[:, None]))
        overlap = there @ units.slots[:, None]  # (X, K, D, 2)
        slots, added = (x.unflatten(-1, (2, SLOTS)) for x in (there, own))
        # how much longer slots become if each lasts as long as its fullest device
        longer = torch.relu(slots + added - slots.amax(2, keepdim=True)).sum(-1)  # (X, K, D, 2)
        inward, in_delay, outward, out_delay = near[..., :MESSAGE].unbind(-1)
        cost, delay = (i @ units.links + o @ units.links.mT for i, o in ((inward, outward), (in_delay, out_delay)))
        logs = torch.asinh(torch.stack([inward, outward, cost, in_delay, out_delay, delay], -1)) / 7
        loads = [
            after,
            above_least(after),
            torch.relu(after - load.amax(-1, keepdim=True)),
            load - load.mean(-1, keepdim=True),
            count.clamp(max=1),
            (inward + outward) / units.exchanged.clamp(min=1e-6),
            above_least(logs[..., 2]),
            above_least(logs[..., 5]),
        ]
        pairs = [
            torch.stack(loads, -1),
            logs[..., :5],
            longer / added.sum(-1).clamp(min=1e-9),
            10 * load.shape[-1] * (longer - longer.amin(2, keepdim=True)),
            overlap,
            overlap - overlap.amin(2, keepdim=True),
            memory,
            memory > 1,
        ]
        mean = placed[..., EMBEDDING:] / count.clamp(min=1)[..., None]
        hidden = torch.relu(units.known[:, None] + mean + near[..., MESSAGE:] + self.pair(torch.cat(pairs, -1)))
        logits: Tensor = self.head(torch.relu(self.middle(hidden)))[..., 0]
        return logits


def unit_features(graph: OneShotInput, transfers: Tensor) -> Tensor:
    """Return the features (U, `STATIC`) of units, from the times (U, 2) of all transfers from and to each of them."""
    devices, memory = graph.num_devices, graph.memory.mean(1).sum(-1, keepdim=True)
    share, profile = devices * graph.work[:, None], 4 * devices * graph.profile.flatten(1)
    return torch.cat([graph.features, share, transfers, fine_log(transfers), memory, profile], -1)


def heard(unit: Tensor, device: Tensor, carried: Tensor, shape: tuple[int, int]) -> Tensor:
    """Sum what arcs carry over the units that a device has: (X, K, D, N).

    Args:
        unit: (M,) int64, to which of the X units each arc leads.
        device: (M, K) int64, device of the earlier unit of each arc in each sample.
        carried: (M, N), as in `Arcs`.
        shape: X and D.
    """
    samples = device.shape[1]
    place = (unit[:, None] * samples + torch.arange(samples, device=unit.device)) * shape[1] + device
    sums = carried.new_zeros(shape[0] * samples * shape[1], carried.shape[1])
    values = carried[:, None].expand(-1, samples, -1).flatten(0, 1)
    return sums.index_add(0, place.flatten(), values).view(shape[0], samples, shape[1], -1)


def above_least(x: Tensor) -> Tensor:
    """Subtract the least value over devices: (..., D) -> (..., D)."""
    return x - x.amin(-1, keepdim=True)


def fine_log(x: Tensor) -> Tensor:
    """Return a number that grows as the logarithm of a time above `FINE`, and is 0 for the time 0."""
    return torch.asinh(x / FINE) / 7
