"""Where a local search stands, and the moves of groups that it may propose.

Legend: N ops, G groups, D devices, S sets, M kinds of moves, C moves that have a delta estimate, H entries of the memo.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto.compiling import compiled
from placeto.heuristics.local_search.neighbourhood import Neighbourhood
from placeto.heuristics.local_search.random_numbers import between, uniform

MOVES = ("estimated", "critical", "random", "swap", "set", "part", "exchange", "block")
"""A critical group, to where its delta estimate is good; a group that holds up the schedule; any group; two groups
change places, one of them critical; a whole set; what a set has on one device; what it has on two devices changes
places; a connected block on one device."""
MANY = 8
"""Devices above which it matters which of them a group is offered."""
LARGEST_BLOCK = 12
"""Groups of a connected block that moves together, at most."""
CRITICAL_SETS = 0.8
"""Share of the moves of sets that are of one with a critical group."""
ESTIMATED, CRITICAL, RANDOM, SWAP, SET, PART, EXCHANGE, BLOCK = range(len(MOVES))


class State(NamedTuple):
    """Where the search stands; changed in place."""

    placement: np.ndarray  # (N,) int64, ops
    device: np.ndarray  # (G,) int64, groups
    best: np.ndarray  # (N,) int64, best placement met
    critical: np.ndarray  # (G,) int64, groups with an op of no slack, the first `num_critical[0]` of them
    num_critical: np.ndarray  # (1,) int64
    score: np.ndarray  # (4,) penalised makespan now; of the best: penalised makespan, makespan, overflow
    pair: np.ndarray  # (C, 2) int64, moves that have a delta estimate: group and device
    weight: np.ndarray  # (C,) float64, of the first `num_pairs[0]` of them
    num_pairs: np.ndarray  # (1,) int64
    salt: np.ndarray  # (G, D) uint64, random: the hash of a placement is the exclusive or of its groups' salts
    hash: np.ndarray  # (1,) uint64, of the placement now
    seen: np.ndarray  # (H,) uint64, hashes of placements simulated, H a power of two
    bound: np.ndarray  # (H,) float64, their penalised makespans are at least this
    temperature: np.ndarray  # (1,) float64, us
    counter: np.ndarray  # (1,) uint64, of random numbers


class Rules(NamedTuple):
    """How a search proposes and accepts."""

    mix: np.ndarray  # (M,) cumulative probability of each kind of move; RANDOM must have some
    estimate_unit: float  # delta estimates that differ by less are alike; share of the makespan; 0 = makes none
    known: int  # proposals in a row that need no simulation, after which one is accepted whatever it costs


@compiled(inner=True, nogil=True)
def _propose_estimated(state: State, chosen: np.ndarray, target: np.ndarray) -> int:
    """A pair at random by its weight, which becomes zero: no pair is proposed twice before the placement changes."""
    pairs = state.num_pairs[0]
    total = state.weight[:pairs].sum()
    if total <= 1e-12:
        return 0
    left = uniform(state.counter) * total
    pick = -1
    for k in range(pairs):
        if state.weight[k] > 0.0:
            pick = k
            left -= state.weight[k]
            if left < 0.0:
                break
    state.weight[pick] = 0.0
    chosen[0], target[0] = state.pair[pick, 0], state.pair[pick, 1]
    return 1


@compiled(inner=True, nogil=True)
def _elsewhere(near: Neighbourhood, state: State, group: int, num_devices: int) -> int:
    """Another device for a group: any, or of many, half of the time, that of one with which it exchanges tensors."""
    here, first, stop = state.device[group], near.near_ptr[group], near.near_ptr[group + 1]
    if num_devices > MANY and stop > first and uniform(state.counter) < 0.5:
        device = state.device[near.near[between(state.counter, first, stop)]]
        if device != here:
            return device
    return (here + 1 + between(state.counter, 0, num_devices - 1)) % num_devices


@compiled(nogil=True)
def propose(
    near: Neighbourhood,
    state: State,
    kind: int,
    num_devices: int,
    marked: np.ndarray,
    chosen: np.ndarray,
    target: np.ndarray,
) -> int:
    """Fill the groups to move and their new devices; returns how many, 0 if the proposal changes nothing."""
    num_groups = len(near.op_ptr) - 1
    if kind == ESTIMATED:
        return _propose_estimated(state, chosen, target)
    if kind in (SET, PART, EXCHANGE):
        return _propose_set(near, state, kind, num_devices, chosen, target)
    if kind == RANDOM or state.num_critical[0] == 0:
        group = between(state.counter, 0, num_groups)
    else:
        group = state.critical[between(state.counter, 0, state.num_critical[0])]
    here = state.device[group]
    if kind == SWAP:
        other = between(state.counter, 0, num_groups)
        if state.device[other] == here:
            return 0
        chosen[0], target[0] = group, state.device[other]
        chosen[1], target[1] = other, here
        return 2
    device = _elsewhere(near, state, group, num_devices)
    chosen[0] = group
    count = 1
    if kind == BLOCK:
        size = between(state.counter, 2, LARGEST_BLOCK + 1)
        marked[group] = True
        head = 0
        while head < count and count < size:
            for k in range(near.near_ptr[chosen[head]], near.near_ptr[chosen[head] + 1]):
                other = near.near[k]
                if count < size and not marked[other] and state.device[other] == here:
                    marked[other] = True
                    chosen[count] = other
                    count += 1
            head += 1
        marked[chosen[:count]] = False
    target[:count] = device
    return count


@compiled(inner=True, nogil=True)
def _propose_set(
    near: Neighbourhood,
    state: State,
    kind: int,
    num_devices: int,
    chosen: np.ndarray,
    target: np.ndarray,
) -> int:
    """Moves of sets: mostly of one that holds a critical group, and half of the time of a window of it around that."""
    num_sets = len(near.set_ptr) - 1
    if num_sets == 0:
        return 0
    which, middle = between(state.counter, 0, num_sets), -1
    if state.num_critical[0] > 0 and uniform(state.counter) < CRITICAL_SETS:
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
        here = state.device[group]
        if here == source or (kind == SET and here != device):
            chosen[count], target[count] = group, device
            count += 1
        elif kind == EXCHANGE and here == device:
            chosen[count], target[count] = group, source
            count += 1
    return count
