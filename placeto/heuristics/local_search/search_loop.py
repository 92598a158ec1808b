"""The compiled loop behind the local searches: propose moves of groups, simulate, accept or not.

`_propose_batch` makes proposals, and draws the score below which each is accepted, its *cutoff*: the present score, and
at a temperature above 0 a random amount more. A simulation stops above it. `search` compares, and `_accept` moves. The
*memo* (`State.seen`, `State.bound`) has the scores of simulated placements. A proposal is *known* if the memo says that
its score isn't below its cutoff: it is rejected without a simulation.

Legend: N ops, G groups, D devices, L entries of the log.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placeto.heuristics.local_search.moves import MOVES, State, propose
from placeto.heuristics.local_search.neighbourhood import Neighbourhood
from placeto.heuristics.local_search.random_numbers import between, uniform
from placeto.heuristics.local_search.thread_pool import (
    Batch,
    ThreadPool,
    await_all,
    call,
    put,
    record_of,
    take_part,
    wait_for_tasks,
)
from placeto.plumbing.array_kernels import copy_into
from placeto.plumbing.compiling import compiled
from placeto.problem.flat import FlatProblem
from placeto.simulator.kernel import Record
from placeto.simulator.lowering import lowered
from placeto.simulator.slack import fill_slack

_KINDS = len(MOVES)
_STEER = 0.1  # how fast the temperature changes while the share of accepted proposals differs from the goal


class Log(NamedTuple):
    """The improvements of the best placement: arrays (L,), L at least the number of simulations."""

    simulation: np.ndarray  # int64, number of the simulation, from 1 on
    makespan: np.ndarray  # float64, us, of the new best placement
    overflow: np.ndarray  # float64, memory overflow of the new best placement


class Stretch(NamedTuple):
    """What a call of `search` is to do."""

    simulations: int  # it makes at most this number
    known: int  # see `KNOWN` in `local_search`
    warmth: tuple[float, float]
    """Share of the proposals that are to be accepted though worse, at the beginning and at the end; in between, it
    falls geometrically. The temperature is adjusted to it. 0 accepts none."""
    restart: bool = False  # the state's placement of groups is simulated first, and accepted


@compiled()
def search(
    flat: FlatProblem,
    near: Neighbourhood,
    state: State,
    batch: Batch,
    pool: ThreadPool,
    stretch: Stretch,
    log: Log,
    thread: int,
    number: int,
) -> tuple[int, int]:
    """Simulate proposals, and keep those that are no worse or, at a temperature above 0, not much worse.

    Args:
        flat: the problem, of two devices at least.
        near: the neighbourhood of its groups.
        state: of the search; it is changed.
        batch: for proposals; its size has no influence on the result.
        pool: what its threads share.
        stretch: what to do.
        log: the improvements are written into it.
        thread: number of this thread. Thread 0 runs the search. The others only take part in its batches, until the
            call of the search is over.
        number: the number that ``pool.control[CALL]`` has until then.

    Returns:
        The number of simulations made, and the length of the log. If nothing worse is accepted, the search also ends
        after `Stretch.known` known proposals in a row.
    """
    zero: Any = np.int64(0)  # no literal, see `compiled`
    logged, done, known, filled, waiting, stuck = 0, zero, zero, zero, zero - 1, False
    simulations, most_known, warmth, restart = stretch
    if thread == 0:
        if restart:
            filled = _enter(near, state, batch)
        for row in range(len(pool.placement)):
            copy_into(pool.placement[row], state.placement)
    while True:
        if thread > 0:
            if not wait_for_tasks(pool, number):
                return done, logged
        elif not restart:  # 1. propose a batch
            if done == simulations or stuck:
                return done, logged
            counts = done, simulations, min(len(batch.size), simulations - done)
            filled, known, waiting, stuck = _propose_batch(
                near, state, batch, counts, known, most_known, waiting, warmth
            )
        restart = False
        if thread == 0:  # 2. all threads simulate it
            call(pool, filled)
        take_part(flat, near, state, batch, pool, thread)
        if thread > 0:
            continue
        await_all(pool)
        for i in range(filled):  # 3. accept or reject, one after the other; those after an accepted one are dropped
            done += 1
            score, cutoff = batch.score[i], batch.cutoff[i]
            state.seen[batch.entry[i]] = batch.key[i]
            state.bound[batch.entry[i]] = score if score < np.inf else cutoff
            if score <= cutoff:
                known, waiting, stuck = zero, zero - 1, False
                _accept(near, state, batch, pool, i, _share_of_worse(warmth, done, simulations))
                if _keep_best(state, score, batch.makespan[i], batch.overflow[i]):
                    log.simulation[logged] = done
                    log.makespan[logged], log.overflow[logged] = batch.makespan[i], batch.overflow[i]
                    logged += 1
                _find_critical(flat, near, state, record_of(pool, batch.thread[i]), batch.sends[i], batch.makespan[i])
                break


@compiled(inner=True)
def _enter(near: Neighbourhood, state: State, batch: Batch) -> int:
    """Make the state's placement of groups the only proposal, which is accepted whatever its score; returns 1."""
    key = np.uint64(0)
    for group in range(len(state.device)):
        put(near, state.placement, group, state.device[group])
        key ^= state.salt[group, state.device[group]]
    batch.size[0], batch.cutoff[0] = 0, np.inf
    batch.key[0], batch.entry[0] = key, np.int64(key & np.uint64(len(state.seen) - 1))
    batch.drawn[0], batch.temperature[0] = state.counter[0], state.temperature[0]
    return 1


@compiled(inner=True)
def _accept(near: Neighbourhood, state: State, batch: Batch, pool: ThreadPool, i: int, goal: float) -> None:
    """Make a proposal the current placement, and undo the random numbers that were drawn after it.

    `goal` is the share of proposals to accept though worse, by which the temperature is adjusted.
    """
    score = batch.score[i]
    state.counter[0] = batch.drawn[i]
    if goal > 0.0:
        state.temperature[0] = batch.temperature[i] * np.exp(_STEER * (goal - (state.score[0] < score)))
    for k in range(batch.size[i]):
        group, device = batch.chosen[i, k], batch.target[i, k]
        state.device[group] = device
        put(near, state.placement, group, device)
        for thread in range(len(pool.placement)):
            put(near, pool.placement[thread], group, device)
    state.score[0], state.hash[0] = score, batch.key[i]


@compiled(inner=True)
def _keep_best(state: State, score: float, makespan: float, overflow: float) -> bool:
    """Copy the current placement to the best one if it is better; returns whether it is.

    A placement that fits into memory is better than one that doesn't; otherwise the smaller score is better.
    """
    fits, best_fits = overflow == 0.0, state.best_overflow[0] == 0.0
    if (fits and not best_fits) or (fits == best_fits and score < state.best_score[0]):
        copy_into(state.best, state.placement)
        state.best_score[0], state.best_makespan[0], state.best_overflow[0] = score, makespan, overflow
        return True
    return False


@compiled(inner=True)
def _share_of_worse(warmth: tuple[float, float], done: int, simulations: int) -> float:
    """The share of proposals to accept though worse, after `done` of `simulations`; it falls geometrically."""
    hot, cold = warmth
    return hot * (cold / hot) ** (done / simulations) if hot > 0.0 else 0.0


@compiled(inner=True)
def _copy_proposal(batch: Batch, source: int, to: int) -> None:
    """Copy proposal `source` of the batch, which wasn't simulated yet, to entry `to`."""
    count = batch.size[source]
    batch.size[to] = count
    copy_into(batch.chosen[to], batch.chosen[source, :count])
    copy_into(batch.target[to], batch.target[source, :count])
    batch.key[to], batch.entry[to], batch.cutoff[to] = batch.key[source], batch.entry[source], batch.cutoff[source]
    batch.drawn[to] = batch.drawn[source]


@compiled(inner=True, inline="always")
def _propose_batch(
    near: Neighbourhood,
    state: State,
    batch: Batch,
    counts: tuple[int, int, int],
    known: int,
    most_known: int,
    waiting: int,
    warmth: tuple[float, float],
) -> tuple[int, int, int, bool]:
    """Fill the batch with proposals, each made as if all before it were rejected. Known proposals are left out.

    Args:
        near: as in `search`.
        state: its memo is read; its temperature and random numbers change.
        batch: the proposals are written into it.
        counts: number of simulations done, number of simulations of this search, upper limit of proposals to make.
        known: number of proposals in a row that were known.
        most_known: see `Stretch.known`.
        waiting: entry of the batch with a proposal that becomes the first one of this batch; -1 = none.
        warmth: as in `search`.

    Returns:
        The number of proposals made. The number of proposals in a row that were known. The entry of another proposal
        that waits: it has the same memo entry as one of this batch, and may be known once that one is simulated.
        Whether the search is to end, since `most_known` proposals in a row were known and nothing worse is accepted.
    """
    done, simulations, most = counts
    hot, num_devices, last = warmth[0], state.salt.shape[1], np.uint64(len(state.seen) - 1)
    filled: Any = np.int64(0)  # no literal, see `compiled`
    none = filled - 1
    while filled < most:
        if waiting >= 0:
            _copy_proposal(batch, waiting, filled)
            waiting = none
        else:
            count, chosen, target = 0, batch.chosen[filled], batch.target[filled]
            while count == 0:
                count = propose(near, state, between(state.counter, 0, _KINDS), num_devices, chosen, target)
            key = state.hash[0]
            for k in range(count):
                key ^= state.salt[chosen[k], state.device[chosen[k]]] ^ state.salt[chosen[k], target[k]]
            batch.size[filled], batch.key[filled], batch.entry[filled] = count, key, np.int64(key & last)
            batch.cutoff[filled] = state.score[0]
            if hot > 0.0:
                batch.cutoff[filled] -= state.temperature[0] * np.log(1.0 - uniform(state.counter))
            batch.drawn[filled] = state.counter[0]
        entry = batch.entry[filled]
        if known >= most_known:
            if hot <= 0.0:  # nothing worse is accepted, so nothing new is in reach
                return filled, known, none, True
            batch.cutoff[filled] = np.inf  # accept the next proposal whatever its score, to get away
        elif (batch.entry[:filled] == entry).any():  # only that one's simulation tells whether this one is known
            return filled, known, filled, False
        elif state.seen[entry] == batch.key[filled] and state.bound[entry] >= batch.cutoff[filled]:
            known += 1
            if hot > 0.0:  # the temperature changes as by a simulated rejection
                state.temperature[0] *= np.exp(_STEER * _share_of_worse(warmth, done + filled, simulations))
            continue
        known = 0
        batch.temperature[filled] = state.temperature[0]
        filled += 1
        if hot > 0.0:
            state.temperature[0] *= np.exp(_STEER * _share_of_worse(warmth, done + filled, simulations))
    return filled, known, none, False


@compiled(inner=True, inline="always")
def _find_critical(
    flat: FlatProblem, near: Neighbourhood, state: State, record: Record, num_sends: int, makespan: float
) -> None:
    """Find the critical groups of the current schedule."""
    num_devices = len(flat.overhead_us)
    op_slack, send_slack = np.empty(len(record.start)), np.empty(len(record.send_start))
    low, place = lowered(flat, state.placement)
    fill_slack(low, place, record, num_sends, makespan, op_slack, send_slack)
    count = 0
    for op in range(len(near.group)):
        group = near.group[op]
        takes_time = flat.op_time[op * num_devices + state.placement[op]] > 0.0
        if op_slack[op] <= 1e-9 * makespan and takes_time and not state.marked[group]:
            state.marked[group] = True
            state.critical[count] = group
            count += 1
    state.marked[state.critical[:count]] = False
    state.num_critical[0] = count
