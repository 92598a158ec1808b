"""The compiled loop behind the local searches: propose a move of groups, simulate, accept or not.

The simulator stops as soon as it is sure that a proposal will be rejected, and no placement is simulated again whose
score is known to be too bad.

Legend: N ops, G groups, D devices, S sets, M kinds of moves, C candidates of the guide, H entries of the memo, L log.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from placeto.heuristics.local_search.guide import Scratch, estimate, new_scratch
from placeto.heuristics.local_search.neighbourhood import Neighbourhood
from placeto.problem.flat import FlatProblems
from placeto.simulator.memory import penalised_makespan, run_and_measure
from placeto.simulator.slack import fill_slack
from placeto.simulator.timelines import timelines

MOVES = ("guided", "critical", "random", "swap", "set", "part", "exchange", "block")
"""A critical group, where the guide expects most; a group that holds up the schedule; any group; two groups change
places, one of them critical; a whole set; what a set has on one device; what it has on two devices changes places; a
connected block on one device."""
GUIDED, CRITICAL, RANDOM, SWAP, SET, PART, EXCHANGE, BLOCK = range(len(MOVES))


class State(NamedTuple):
    """Where the search stands; changed in place."""

    placement: np.ndarray  # (N,) int64, ops
    device: np.ndarray  # (G,) int64, groups
    best: np.ndarray  # (N,) int64, best placement met
    critical: np.ndarray  # (G,) int64, groups with an op of no slack, the first `num_critical[0]` of them
    num_critical: np.ndarray  # (1,) int64
    score: np.ndarray  # (4,) penalised makespan now; of the best: penalised makespan, makespan, overflow
    pair: np.ndarray  # (C, 2) int64, candidates of the guide: group and device
    weight: np.ndarray  # (C,) float64, of the first `num_pairs[0]` of them
    num_pairs: np.ndarray  # (1,) int64
    salt: np.ndarray  # (G, D) uint64, random: the hash of a placement is the exclusive or of its groups' salts
    hash: np.ndarray  # (1,) uint64, of the placement now
    seen: np.ndarray  # (H,) uint64, hashes of placements simulated, H a power of two
    temperature: np.ndarray  # (1,) float64, us
    bound: np.ndarray  # (H,) float64, their penalised makespans are at least this


class Rules(NamedTuple):
    """How a search proposes and accepts."""

    mix: np.ndarray  # (M,) cumulative probability of each kind of move; RANDOM must have some
    guide: float  # differences of the guide's estimates that matter, as a share of the makespan; 0 = without it
    largest_block: int  # groups of a connected block that moves together, at most
    critical_sets: float  # share of the moves of sets that are of one with a critical group
    windows: float  # share of the moves of sets that are of a window of it
    known: int  # proposals in a row that need no simulation, after which one is accepted whatever it costs
    steer: float  # how fast the temperature follows the share of accepted proposals


class Log(NamedTuple):
    """When the best improved, and to what: arrays (L,) of at least as many entries as simulations."""

    simulation: np.ndarray  # int64
    makespan: np.ndarray  # float64, us
    overflow: np.ndarray  # float64


@njit(cache=True, nogil=True)
def enter(flat: FlatProblems, near: Neighbourhood, state: State, guide: float) -> None:
    """Simulate the state's placement of groups, and fill in the rest of the state; a better best is kept."""
    scratch = new_scratch(flat, near)
    state.hash[0] = 0
    for group in range(len(state.device)):
        _move(near, state, group, state.device[group])
        state.hash[0] ^= state.salt[group, state.device[group]]
    makespan, overflow, num_sends = run_and_measure(flat, 0, state.placement, scratch.record, np.inf)
    state.score[0] = penalised_makespan(makespan, overflow)
    if (overflow > 0.0, state.score[0]) < (state.score[3] > 0.0, state.score[1]):
        state.score[1], state.score[2], state.score[3] = state.score[0], makespan, overflow
        state.best[:] = state.placement
    _look(flat, near, state, scratch, num_sends, makespan, guide)


@njit(cache=True, nogil=True)
def search(
    flat: FlatProblems,
    near: Neighbourhood,
    state: State,
    rules: Rules,
    rng: np.random.Generator,
    simulations: int,
    patience: int,
    warmth: tuple[float, float],
    log: Log,
) -> tuple[int, int]:
    """Simulate proposals, and keep those that are no worse or, at a temperature above 0, not much worse.

    Args:
        flat: the problem, of two devices at least.
        near: its neighbourhood.
        state: what `enter` made; changed.
        rules: how to propose and accept.
        rng: source of randomness.
        simulations: at most so many.
        patience: end after so many proposals in a row, simulated or not, none of them an improvement.
        warmth: the temperature is steered so that this share of the proposals is accepted though worse, at the
            beginning and at the end, between which it falls geometrically; 0 accepts none.
        log: filled with the improvements.

    Returns:
        Simulations made, and length of the log. Without a temperature it also ends where all proposals are known.
    """
    hot, cold = warmth
    num_groups, num_devices = len(near.op_ptr) - 1, flat.device_offset[1]
    scratch = new_scratch(flat, near)
    chosen, target = np.empty(num_groups, np.int64), np.empty(num_groups, np.int64)
    before = np.empty(num_groups, np.int64)
    last = np.uint64(len(state.seen) - 1)
    logged, done, known, fruitless = 0, 0, 0, 0
    while done < simulations and fruitless < patience:
        fruitless += 1
        count, kind = 0, RANDOM
        while count == 0:
            kind = int(np.searchsorted(rules.mix, rng.random(), side="right"))
            count = _propose(near, state, rules, kind, num_devices, rng, scratch.marked, chosen, target)
        key = state.hash[0]
        for k in range(count):
            before[k] = state.device[chosen[k]]
            key ^= state.salt[chosen[k], before[k]] ^ state.salt[chosen[k], target[k]]
        cutoff = state.score[0]
        if hot > 0.0:
            cutoff -= state.temperature[0] * np.log(1.0 - rng.random())
        entry = np.int64(key & last)
        if known >= rules.known:
            if hot <= 0.0:
                break
            cutoff = np.inf
        elif state.seen[entry] == key and state.bound[entry] >= cutoff:
            known += 1
            if hot > 0.0:  # a rejection as well
                state.temperature[0] *= np.exp(rules.steer * hot * (cold / hot) ** (done / simulations))
            continue
        known = 0
        for k in range(count):
            _move(near, state, chosen[k], target[k])
        makespan, overflow, num_sends = run_and_measure(flat, 0, state.placement, scratch.record, cutoff)
        score = penalised_makespan(makespan, overflow) if makespan < np.inf else np.inf
        done += 1
        state.seen[entry], state.bound[entry] = key, score if score < np.inf else cutoff
        if hot > 0.0:
            goal = hot * (cold / hot) ** (done / simulations)
            state.temperature[0] *= np.exp(rules.steer * (goal - (state.score[0] < score <= cutoff)))
        if score > cutoff:
            for k in range(count):
                _move(near, state, chosen[k], before[k])
            continue
        if score < state.score[0]:
            fruitless = 0
        state.score[0], state.hash[0] = score, key
        _look(flat, near, state, scratch, num_sends, makespan, rules.guide)
        fits, best_fits = overflow == 0.0, state.score[3] == 0.0
        if (fits and not best_fits) or (fits == best_fits and score < state.score[1]):
            state.best[:] = state.placement
            state.score[1], state.score[2], state.score[3] = score, makespan, overflow
            log.simulation[logged], log.makespan[logged], log.overflow[logged] = done, makespan, overflow
            logged += 1
    return done, logged


@njit(cache=True, nogil=True)
def _move(near: Neighbourhood, state: State, group: int, device: int) -> None:
    state.device[group] = device
    for k in range(near.op_ptr[group], near.op_ptr[group + 1]):
        state.placement[near.ops[k]] = device


@njit(cache=True, nogil=True)
def _look(
    flat: FlatProblems,
    near: Neighbourhood,
    state: State,
    scratch: Scratch,
    num_sends: int,
    makespan: float,
    guide: float,
) -> None:
    """Find the critical groups of the schedule in the scratch record, and what the guide says about moving them."""
    num_devices, marked = flat.device_offset[1], scratch.marked
    fill_slack(flat, 0, state.placement, scratch.record, num_sends, makespan, scratch.op_slack, scratch.send_slack)
    count = 0
    for op in range(len(near.group)):
        group = near.group[op]
        takes_time = flat.op_time[op * num_devices + state.placement[op]] > 0.0
        if scratch.op_slack[op] <= 1e-9 * makespan and takes_time and not marked[group]:
            marked[group] = True
            state.critical[count] = group
            count += 1
    marked[state.critical[:count]] = False
    state.num_critical[0] = count
    state.num_pairs[0] = 0
    if guide <= 0.0:
        return
    timelines(flat, 0, state.placement, scratch.record, num_sends, scratch.line_ptr, scratch.line)
    pairs, least = 0, np.inf
    for k in range(count):
        group = state.critical[k]
        for device in range(num_devices):
            if device != state.device[group]:
                change = estimate(flat, near, state.placement, scratch, group, device)
                state.pair[pairs, 0], state.pair[pairs, 1] = group, device
                state.weight[pairs] = change
                least = min(least, change)
                pairs += 1
    for k in range(pairs):
        state.weight[k] = np.exp((least - state.weight[k]) / (guide * makespan))
    state.num_pairs[0] = pairs


@njit(cache=True, nogil=True)
def _propose_guided(state: State, rng: np.random.Generator, chosen: np.ndarray, target: np.ndarray) -> int:
    """A pair at random by its weight, which becomes zero: no pair is proposed twice before the placement changes."""
    pairs = state.num_pairs[0]
    total = state.weight[:pairs].sum()
    if total <= 1e-12:
        return 0
    left = rng.random() * total
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


@njit(cache=True, nogil=True)
def _propose(
    near: Neighbourhood,
    state: State,
    rules: Rules,
    kind: int,
    num_devices: int,
    rng: np.random.Generator,
    marked: np.ndarray,
    chosen: np.ndarray,
    target: np.ndarray,
) -> int:
    """Fill the groups to move and their new devices; returns how many, 0 if the proposal changes nothing."""
    num_groups = len(near.op_ptr) - 1
    if kind == GUIDED:
        return _propose_guided(state, rng, chosen, target)
    if kind in (SET, PART, EXCHANGE):
        return _propose_set(near, state, rules, kind, num_devices, rng, chosen, target)
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
        size = rng.integers(2, rules.largest_block + 1)
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
    rules: Rules,
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
    if state.num_critical[0] > 0 and rng.random() < rules.critical_sets:
        group = state.critical[rng.integers(0, state.num_critical[0])]
        if near.home_ptr[group + 1] > near.home_ptr[group]:
            entry = rng.integers(near.home_ptr[group], near.home_ptr[group + 1])
            which, middle = near.home[entry], near.home_place[entry]
    first, stop = near.set_ptr[which], near.set_ptr[which + 1]
    if middle < 0:
        middle = rng.integers(first, stop)
    source = state.device[near.sets[middle]]
    device = (source + 1 + rng.integers(0, num_devices - 1)) % num_devices
    if rng.random() < rules.windows:
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
