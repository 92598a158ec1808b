"""The state of a local search, and the moves of groups that it may propose.

Legend: N ops, G groups, D devices, S sets, H entries of the memo.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto.heuristics.local_search.neighbourhood import Neighbourhood
from placeto.heuristics.local_search.random_numbers import between, uniform
from placeto.plumbing.compiling import compiled

MOVES = ("critical", "random", "swap", "set", "part", "exchange", "block")
"""Kinds of moves, which are proposed equally often:

- critical: a critical group, that is, one with an op that takes time and has no slack;
- random: any group;
- swap: two groups change places, one of them critical;
- set: all groups of a set, to one device;
- part: the groups of a set that are on one device, to another one;
- exchange: the groups of a set that are on two devices change places;
- block: a connected block of groups that are on one device, one of them critical, to another one.
"""
LARGEST_BLOCK = 12
"""Upper limit of the number of groups in a connected block."""
CRITICAL, RANDOM, SWAP, SET, PART, EXCHANGE, BLOCK = range(len(MOVES))


class State(NamedTuple):
    """The state of a search; changed in place."""

    placement: np.ndarray  # (N,) int64, device of each op in the current placement
    device: np.ndarray  # (G,) int64, device of each group in the current placement
    best: np.ndarray  # (N,) int64, device of each op in the best placement so far
    critical: np.ndarray  # (G,) int64, its first `num_critical[0]` entries are the critical groups
    num_critical: np.ndarray  # (1,) int64
    score: np.ndarray  # (1,) float64, us, penalised makespan of the current placement
    best_score: np.ndarray  # (1,) float64, us, penalised makespan of the best placement so far
    best_makespan: np.ndarray  # (1,) float64, us
    best_overflow: np.ndarray  # (1,) float64, its memory overflow; 0 = it fits
    marked: np.ndarray  # (G,) bool, for marking groups; all False between calls
    salt: np.ndarray  # (G, D) uint64, random: the hash of a placement is the exclusive or of its groups' salts
    hash: np.ndarray  # (1,) uint64, of the current placement
    seen: np.ndarray  # (H,) uint64, hashes of simulated placements; H is a power of two
    bound: np.ndarray  # (H,) float64, us, lower bounds of the penalised makespans of these placements
    temperature: np.ndarray  # (1,) float64, us
    counter: np.ndarray  # (1,) uint64, state of the random numbers; see `random_numbers`


@compiled(inner=True)
def _elsewhere(near: Neighbourhood, state: State, group: int, num_devices: int) -> int:
    """Draw another device for a group.

    Half of the time it is that of a group with which this one exchanges tensors. If that is the group's own device, and
    in all other cases, every other device is equally likely.
    """
    source, first, stop = state.device[group], near.near_ptr[group], near.near_ptr[group + 1]
    if stop > first and uniform(state.counter) < 0.5:
        device = state.device[near.near[between(state.counter, first, stop)]]
        if device != source:
            return device
    return (source + 1 + between(state.counter, 0, num_devices - 1)) % num_devices


@compiled(inner=True)
def propose(
    near: Neighbourhood,
    state: State,
    kind: int,
    num_devices: int,
    chosen: np.ndarray,
    target: np.ndarray,
) -> int:
    """Propose a move of a kind; returns how many groups it moves, 0 if this proposal would change nothing.

    Args:
        near: which groups may be moved together.
        state: its random numbers go on.
        kind: number of the kind in `MOVES`.
        num_devices: D, at least 2.
        chosen: (G,) int64, its first entries are set to the groups that move.
        target: (G,) int64, its first entries are set to their new devices.
    """
    num_groups = len(near.op_ptr) - 1
    if kind in (SET, PART, EXCHANGE):
        return _propose_set(near, state, kind, num_devices, chosen, target)
    if kind == RANDOM or state.num_critical[0] == 0:
        group = between(state.counter, 0, num_groups)
    else:
        group = state.critical[between(state.counter, 0, state.num_critical[0])]
    source = state.device[group]
    if kind == SWAP:
        partner = between(state.counter, 0, num_groups)
        if state.device[partner] == source:
            return 0
        chosen[0], target[0] = group, state.device[partner]
        chosen[1], target[1] = partner, source
        return 2
    device = _elsewhere(near, state, group, num_devices)
    chosen[0] = group
    count = 1
    if kind == BLOCK:
        size = between(state.counter, 2, LARGEST_BLOCK + 1)
        state.marked[group] = True
        head = 0  # breadth first from the group, through neighbours on its device; `chosen` is the queue
        while head < count and count < size:
            for k in range(near.near_ptr[chosen[head]], near.near_ptr[chosen[head] + 1]):
                partner = near.near[k]
                if count < size and not state.marked[partner] and state.device[partner] == source:
                    state.marked[partner] = True
                    chosen[count] = partner
                    count += 1
            head += 1
        state.marked[chosen[:count]] = False
    target[:count] = device
    return count


@compiled(inner=True)
def _propose_set(
    near: Neighbourhood,
    state: State,
    kind: int,
    num_devices: int,
    chosen: np.ndarray,
    target: np.ndarray,
) -> int:
    """Propose a move of a set that has a critical group, or any if there is none; returns how many groups it moves.

    Half of the time only a window of the set moves, which has this critical group or, if there is none, a random one.
    """
    num_sets = len(near.set_ptr) - 1
    if num_sets == 0:
        return 0
    which, middle = between(state.counter, 0, num_sets), -1
    if state.num_critical[0] > 0:
        group = state.critical[between(state.counter, 0, state.num_critical[0])]
        if near.home_ptr[group + 1] > near.home_ptr[group]:
            entry = between(state.counter, near.home_ptr[group], near.home_ptr[group + 1])
            which, middle = near.home[entry], near.home_place[entry]
    first, stop = near.set_ptr[which], near.set_ptr[which + 1]
    if middle < 0:
        middle = between(state.counter, first, stop)
    source = state.device[near.sets[middle]]
    device = (source + 1 + between(state.counter, 0, num_devices - 1)) % num_devices
    if uniform(state.counter) < 0.5:
        first = between(state.counter, first, middle + 1)
        stop = between(state.counter, middle + 1, stop + 1)
    count = 0
    for k in range(first, stop):
        group = near.sets[k]
        group_device = state.device[group]
        if group_device == source or (kind == SET and group_device != device):
            chosen[count], target[count] = group, device
            count += 1
        elif kind == EXCHANGE and group_device == device:
            chosen[count], target[count] = group, source
            count += 1
    return count
