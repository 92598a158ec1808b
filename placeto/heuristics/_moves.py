"""The compiled loop behind hill climbing and annealing: propose a move of groups, simulate, accept or not.

The simulator stops as soon as it is sure that a proposal will be rejected.

Legend: N ops, G groups, D devices, S sets, M kinds of moves, A pairs of neighbouring groups (both ways), L log.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from placeto import _kernel
from placeto._memory import run_and_measure
from placeto.cost import FlatProblems
from placeto.placer import MEMORY_PENALTY

MOVES = ("critical", "random", "swap", "set", "part", "exchange", "block")
"""A group that holds up the schedule; any group; two groups change places, one of them critical; a whole set; what a
set has on one device; what it has on two devices changes places; a connected block on one device."""
CRITICAL, RANDOM, SWAP, SET, PART, EXCHANGE, BLOCK = range(len(MOVES))
_BLOCK = 12  # largest connected block
_CRITICAL_SETS = 0.8  # share of the moves of sets that are of one with a critical group
_WINDOWS = 0.5  # share of the moves of sets that are of a window of it


class Neighbourhood(NamedTuple):
    """Which ops and groups may be moved together, as flat arrays of int64."""

    group: np.ndarray  # (N,)
    op_ptr: np.ndarray  # (G+1,) offsets of each group's ops
    ops: np.ndarray  # (N,)
    set_ptr: np.ndarray  # (S+1,)
    sets: np.ndarray  # members of each set
    home_ptr: np.ndarray  # (G+1,)
    home: np.ndarray  # sets of each group
    home_place: np.ndarray  # where in `sets` the group stands
    near_ptr: np.ndarray  # (G+1,)
    near: np.ndarray  # (A,) neighbours of each group


class State(NamedTuple):
    """Where the search stands; changed in place."""

    placement: np.ndarray  # (N,) int64, ops
    device: np.ndarray  # (G,) int64, groups
    best: np.ndarray  # (N,) int64, best placement met
    critical: np.ndarray  # (G,) int64, groups with an op of no slack, the first `num_critical[0]` of them
    num_critical: np.ndarray  # (1,) int64
    score: np.ndarray  # (4,) penalised makespan now; of the best: penalised makespan, makespan, overflow
    tried: np.ndarray  # (M,) int64, simulations of each kind of move
    gained: np.ndarray  # (M,) float64, us by which they improved the best


@njit(cache=True, nogil=True)
def search(
    flat: FlatProblems,
    near: Neighbourhood,
    state: State,
    mix: np.ndarray,
    rng: np.random.Generator,
    simulations: int,
    hot: float,
    cold: float,
    log_simulation: np.ndarray,
    log_makespan: np.ndarray,
) -> int:
    """Simulate so many proposals, the temperature (us) falling from `hot` to `cold`; returns the length of the log.

    `mix` (M,) is the cumulative probability of each kind of move; RANDOM must have some, and D be at least 2. The
    logs (L,), L at least `simulations`, say at which simulation the best improved, and to which makespan.
    """
    num_groups, num_devices = len(near.op_ptr) - 1, flat.device_offset[1]
    record = _kernel.new_record(flat, 0)
    op_slack, send_slack = np.empty(len(near.group)), np.empty(len(flat.out_child))
    chosen, target = np.empty(num_groups, np.int64), np.empty(num_groups, np.int64)
    before = np.empty(num_groups, np.int64)
    marked = np.zeros(num_groups, np.bool_)
    logged = 0
    for step in range(simulations):
        temperature = hot * (cold / hot) ** (step / simulations) if hot > 0.0 else 0.0
        count, kind = 0, RANDOM
        while count == 0:
            kind = int(np.searchsorted(mix, rng.random(), side="right"))
            count = _propose(near, state, kind, num_devices, rng, marked, chosen, target)
        for k in range(count):
            before[k] = state.device[chosen[k]]
            _move(near, state, chosen[k], target[k])
        cutoff = state.score[0] - temperature * np.log(1.0 - rng.random())
        makespan, overflow, num_sends = run_and_measure(flat, 0, state.placement, record, cutoff)
        score = makespan * (1.0 + MEMORY_PENALTY * overflow) if makespan < np.inf else np.inf
        state.tried[kind] += 1
        if score > cutoff:
            for k in range(count):
                _move(near, state, chosen[k], before[k])
            continue
        state.score[0] = score
        _kernel.slack(flat, 0, state.placement, record, num_sends, makespan, op_slack, send_slack)
        _critical_groups(flat, near, state, op_slack, makespan, marked)
        fits, best_fits = overflow == 0.0, state.score[3] == 0.0
        if (fits and not best_fits) or (fits == best_fits and score < state.score[1]):
            state.gained[kind] += max(0.0, state.score[1] - score)
            state.best[:] = state.placement
            state.score[1], state.score[2], state.score[3] = score, makespan, overflow
            log_simulation[logged], log_makespan[logged] = step + 1, makespan
            logged += 1
    return logged


@njit(cache=True, nogil=True)
def _move(near: Neighbourhood, state: State, group: int, device: int) -> None:
    state.device[group] = device
    for k in range(near.op_ptr[group], near.op_ptr[group + 1]):
        state.placement[near.ops[k]] = device


@njit(cache=True, nogil=True)
def _critical_groups(
    flat: FlatProblems, near: Neighbourhood, state: State, op_slack: np.ndarray, makespan: float, marked: np.ndarray
) -> None:
    num_devices = flat.device_offset[1]
    count = 0
    for op in range(len(near.group)):
        group = near.group[op]
        takes_time = flat.op_time[op * num_devices + state.placement[op]] > 0.0
        if op_slack[op] <= 1e-9 * makespan and takes_time and not marked[group]:
            marked[group] = True
            state.critical[count] = group
            count += 1
    marked[state.critical[:count]] = False
    state.num_critical[0] = count


@njit(cache=True, nogil=True)
def _propose(
    near: Neighbourhood,
    state: State,
    kind: int,
    num_devices: int,
    rng: np.random.Generator,
    marked: np.ndarray,
    chosen: np.ndarray,
    target: np.ndarray,
) -> int:
    """Fill the groups to move and their new devices; returns how many, 0 if the proposal changes nothing."""
    num_groups = len(near.op_ptr) - 1
    if kind in (SET, PART, EXCHANGE):
        return _propose_set(near, state, kind, num_devices, rng, chosen, target)
    if kind == RANDOM or state.num_critical[0] == 0:
        group = rng.integers(0, num_groups)
    else:
        group = state.critical[rng.integers(0, state.num_critical[0])]
    here = state.device[group]
    if kind == SWAP:
        other = rng.integers(0, num_groups)
        if state.device[other] == here:
            return 0
        chosen[0], target[0] = group, state.device[other]
        chosen[1], target[1] = other, here
        return 2
    device = (here + 1 + rng.integers(0, num_devices - 1)) % num_devices
    chosen[0] = group
    count = 1
    if kind == BLOCK:
        size = rng.integers(2, _BLOCK + 1)
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


@njit(cache=True, nogil=True)
def _propose_set(
    near: Neighbourhood,
    state: State,
    kind: int,
    num_devices: int,
    rng: np.random.Generator,
    chosen: np.ndarray,
    target: np.ndarray,
) -> int:
    """Moves of sets: mostly of one that holds a critical group, and half of the time of a window of it around that."""
    num_sets = len(near.set_ptr) - 1
    if num_sets == 0:
        return 0
    which, middle = rng.integers(0, num_sets), -1
    if state.num_critical[0] > 0 and rng.random() < _CRITICAL_SETS:
        group = state.critical[rng.integers(0, state.num_critical[0])]
        if near.home_ptr[group + 1] > near.home_ptr[group]:
            entry = rng.integers(near.home_ptr[group], near.home_ptr[group + 1])
            which, middle = near.home[entry], near.home_place[entry]
    first, stop = near.set_ptr[which], near.set_ptr[which + 1]
    if middle < 0:
        middle = rng.integers(first, stop)
    source = state.device[near.sets[middle]]
    device = (source + 1 + rng.integers(0, num_devices - 1)) % num_devices
    if rng.random() < _WINDOWS:
        first = rng.integers(first, middle + 1)
        stop = rng.integers(middle + 1, stop + 1)
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
