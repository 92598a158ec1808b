"""The thread pool of a search: its threads simulate proposals side by side.

Most proposals are rejected, and a rejection changes nothing. So a *speculative batch* of proposals is made: each one as
if all before it were rejected. Several threads simulate them. The first one that is accepted counts, and those after it
are dropped. So what a search finds doesn't depend on the number of threads.

A task is one proposal to simulate. Each thread takes the next task that no thread has taken. Between two batches the
threads keep polling for work, since a batch takes less time than waking a thread.

Legend: N ops, E edges, G groups, B proposals of a batch, W threads. Arrays of schedules also
have room for relays and their edges.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto.heuristics.local_search.moves import State
from placeto.heuristics.local_search.neighbourhood import Neighbourhood
from placeto.plumbing.compiling import compiled
from placeto.problem.flat import FlatProblem
from placeto.simulator import atomics
from placeto.simulator.kernel import Record, record_sizes
from placeto.simulator.memory import penalised_makespan, run_and_measure

NEXT, LIMIT, BUSY, CALL = 0, 8, 16, 24
"""Entries of `ThreadPool.control`. They are 64 bytes apart, so that each has a cache line of its own.

- `NEXT`: the next task that no thread has taken; `_NONE` between two batches.
- `LIMIT`: the number of tasks. Once a proposal is accepted, it is the number of tasks up to this one.
- `BUSY`: the number of threads that work on tasks.
- `CALL`: the number of this call of the search; it changes when the call ends.
"""
_NONE = 1 << 40  # larger than any number of tasks
_AWAKE = 200  # polls after which a thread lets others use the core once


class Batch(NamedTuple):
    """A speculative batch: proposals and their results."""

    size: np.ndarray  # (B,) int64, number of groups that move
    chosen: np.ndarray  # (B, G) int64, its first `size` entries are the groups that move
    target: np.ndarray  # (B, G) int64, its first `size` entries are their new devices
    key: np.ndarray  # (B,) uint64, hash of the placement
    entry: np.ndarray  # (B,) int64, index of the placement in `State.seen` and `State.bound`
    cutoff: np.ndarray  # (B,) float64, us, the proposal is accepted up to this penalised makespan
    drawn: np.ndarray  # (B,) uint64, `State.counter` after the proposal was made
    temperature: np.ndarray  # (B,) float64, us, the temperature when the proposal was made
    score: np.ndarray  # (B,) float64, us, penalised makespan, or inf if the simulation stopped above `cutoff`
    makespan: np.ndarray  # (B,) float64, us
    overflow: np.ndarray  # (B,) float64, memory overflow
    sends: np.ndarray  # (B,) int64, number of sends
    thread: np.ndarray  # (B,) int64, the thread whose record has the schedule


class ThreadPool(NamedTuple):
    """Arrays that the threads share, and arrays with a row for each thread."""

    control: np.ndarray  # (32,) int64, see `NEXT`
    placement: np.ndarray  # (W, N) int64, the current placement; with the proposal's moves during a simulation
    start: np.ndarray  # (W, N); this and the next six are the threads' schedules, see `Record`
    finish: np.ndarray  # (W, N)
    send_tensor: np.ndarray  # (W, E)
    send_dst: np.ndarray  # (W, E)
    send_start: np.ndarray  # (W, E)
    send_finish: np.ndarray  # (W, E)
    order: np.ndarray  # (W, N+E)


def new_batch(proposals: int, groups: int) -> Batch:
    """Return an empty batch with room for this number of proposals."""
    integers = {name: np.zeros(proposals, np.int64) for name in ("size", "entry", "sends", "thread")}
    floats = {name: np.zeros(proposals) for name in ("cutoff", "temperature", "score", "makespan", "overflow")}
    moves = {name: np.zeros((proposals, groups), np.int64) for name in ("chosen", "target")}
    hashes = {name: np.zeros(proposals, np.uint64) for name in ("key", "drawn")}
    return Batch(**integers, **floats, **moves, **hashes)


def new_thread_pool(threads: int, flat: FlatProblem) -> ThreadPool:
    """Return a pool whose threads have no work yet."""
    ops, edges = record_sizes(flat)
    control = np.zeros(32, np.int64)
    control[NEXT] = _NONE
    return ThreadPool(
        control,
        placement=np.zeros((threads, len(flat.op_rank)), np.int64),
        start=np.empty((threads, ops)),
        finish=np.empty((threads, ops)),
        send_tensor=np.empty((threads, edges), np.int64),
        send_dst=np.empty((threads, edges), np.int64),
        send_start=np.empty((threads, edges)),
        send_finish=np.empty((threads, edges)),
        order=np.empty((threads, ops + edges), np.int64),
    )


@compiled(inner=True)
def record_of(pool: ThreadPool, thread: int) -> Record:
    """Return the record of a thread: the schedule that it simulated last."""
    return Record(
        pool.start[thread],
        pool.finish[thread],
        pool.send_tensor[thread],
        pool.send_dst[thread],
        pool.send_start[thread],
        pool.send_finish[thread],
        pool.order[thread],
    )


@compiled(inner=True)
def wait_for_tasks(pool: ThreadPool, number: int) -> bool:
    """Wait for tasks; returns whether there are some. Else the call of the search with this number is over."""
    control, looks = pool.control, 0
    while atomics.load(control, CALL) == number:
        if atomics.load(control, NEXT) < atomics.load(control, LIMIT):
            return True
        looks += 1
        if looks % _AWAKE == 0:
            atomics.give_way()
    return False


@compiled()
def dismiss(pool: ThreadPool) -> None:
    """Let all threads go: the call of the search is over."""
    atomics.add(pool.control, CALL, 1)


@compiled(inner=True)
def call(pool: ThreadPool, count: int) -> None:
    """Give the threads `count` tasks: the first proposals of the batch."""
    atomics.store(pool.control, LIMIT, count)
    atomics.store(pool.control, NEXT, 0)


@compiled(inner=True)
def await_all(pool: ThreadPool) -> None:
    """Wait until no thread works on a task. No thread begins one before the next `call`."""
    atomics.store(pool.control, NEXT, _NONE)
    looks = 0
    while atomics.load(pool.control, BUSY) > 0:
        looks += 1
        if looks % _AWAKE == 0:
            atomics.give_way()


@compiled(inner=True, inline="always")
def take_part(
    flat: FlatProblem, near: Neighbourhood, state: State, batch: Batch, pool: ThreadPool, thread: int
) -> None:
    """Do tasks (see `call`) until none is left, or until this thread has simulated a proposal that is accepted."""
    control, placement, record = pool.control, pool.placement[thread], record_of(pool, thread)
    atomics.add(control, BUSY, 1)
    while True:
        i = atomics.add(control, NEXT, 1)
        if i >= atomics.load(control, LIMIT):
            break
        for k in range(batch.size[i]):
            put(near, placement, batch.chosen[i, k], batch.target[i, k])
        makespan, overflow, sends = run_and_measure(flat, placement, record, batch.cutoff[i])
        batch.makespan[i], batch.overflow[i], batch.sends[i], batch.thread[i] = makespan, overflow, sends, thread
        batch.score[i] = penalised_makespan(makespan, overflow) if makespan < np.inf else np.inf
        for k in range(batch.size[i]):
            put(near, placement, batch.chosen[i, k], state.device[batch.chosen[i, k]])
        if batch.score[i] <= batch.cutoff[i]:
            atomics.least(control, LIMIT, i + 1)  # its record stays until the batch is over
            break
    atomics.add(control, BUSY, -1)


@compiled(inner=True)
def put(near: Neighbourhood, placement: np.ndarray, group: int, device: int) -> None:
    """Write a group's device into `placement` for each of the group's ops."""
    for k in range(near.op_ptr[group], near.op_ptr[group + 1]):
        placement[near.ops[k]] = device
