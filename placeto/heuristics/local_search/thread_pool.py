"""The thread pool of a search: its threads simulate proposals and make delta estimates side by side.

Most proposals are rejected, and a rejection changes nothing. So a *speculative batch* of them is made: each as if those
before it were rejected. Several threads simulate them. The first that is accepted counts, and those after it are
forgotten. So what a search finds doesn't depend on the number of threads.

Threads take the next proposal, or critical group, that nobody has; between two batches they wait, awake, as a batch is
over in less time than waking a thread takes.

Legend: N ops, E edges, G groups, D devices, B proposals of a batch, W threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto.compiling import compiled
from placeto.heuristics.local_search.delta_estimate import Scratch, estimate
from placeto.heuristics.local_search.moves import State
from placeto.heuristics.local_search.neighbourhood import Neighbourhood
from placeto.problem.flat import LONE, FlatProblems
from placeto.simulator import atomics
from placeto.simulator.kernel import Record, record_sizes
from placeto.simulator.memory import penalised_makespan, run_and_measure

NEXT, LIMIT, BUSY, CALL, ASKED = 0, 8, 16, 24, 32
"""Entries of `ThreadPool.control`, apart by a line of the cache: the next proposal, or group, that nobody has; how many
there are before one that is accepted; threads at work; a number that changes when a search ends; for delta estimates,
the thread whose record has the schedule, else -1."""
_NONE = 1 << 40
_AWAKE = 200  # looks for work between two offers of the core to others


class Batch(NamedTuple):
    """A speculative batch: proposals, and what they came to; the last is kept for one that has to wait."""

    size: np.ndarray  # (B,) int64, groups that move
    chosen: np.ndarray  # (B, G) int64, which, the first `size` of them
    target: np.ndarray  # (B, G) int64, and where to
    key: np.ndarray  # (B,) uint64, hash of the placement
    entry: np.ndarray  # (B,) int64, where the memo has it
    cutoff: np.ndarray  # (B,) float64, accepted up to this penalised makespan
    drawn: np.ndarray  # (B,) uint64, random counter after the proposal was made
    temperature: np.ndarray  # (B,) float64, then
    fruitless: np.ndarray  # (B,) int64, then
    score: np.ndarray  # (B,) float64, penalised makespan, or inf
    makespan: np.ndarray  # (B,) float64
    overflow: np.ndarray  # (B,) float64
    sends: np.ndarray  # (B,) int64
    thread: np.ndarray  # (B,) int64, whose record has the schedule


class ThreadPool(NamedTuple):
    """What the threads share, and what each has of its own."""

    control: np.ndarray  # (40,) int64
    placement: np.ndarray  # (W, N) int64, where the search stands; changed while simulating
    start: np.ndarray  # (W, N), with room for relays; these are the records, see `Record`
    finish: np.ndarray  # (W, N)
    send_tensor: np.ndarray  # (W, E)
    send_dst: np.ndarray  # (W, E)
    send_start: np.ndarray  # (W, E)
    send_finish: np.ndarray  # (W, E)
    order: np.ndarray  # (W, N+E)
    op_slack: (
        np.ndarray
    )  # (N,); these and the next four are those of `Scratch`, of the schedule where the search stands
    send_slack: np.ndarray  # (E,)
    line_ptr: np.ndarray  # (D+1,)
    line: np.ndarray  # (N,)
    marked: np.ndarray  # (G,) bool
    guess: np.ndarray  # (W, N)


def new_batch(proposals: int, groups: int) -> Batch:
    """An empty one of so many at most, and one to wait."""
    proposals += 1
    integers = {name: np.zeros(proposals, np.int64) for name in ("size", "entry", "fruitless", "sends", "thread")}
    floats = {name: np.zeros(proposals) for name in ("cutoff", "temperature", "score", "makespan", "overflow")}
    moves = {name: np.zeros((proposals, groups), np.int64) for name in ("chosen", "target")}
    hashes = {name: np.zeros(proposals, np.uint64) for name in ("key", "drawn")}
    return Batch(**integers, **floats, **moves, **hashes)


def new_thread_pool(threads: int, flat: FlatProblems, groups: int, devices: int) -> ThreadPool:
    """Nobody at work."""
    ops, edges = record_sizes(flat)
    control = np.zeros(40, np.int64)
    control[NEXT], control[ASKED] = _NONE, -1
    return ThreadPool(
        control,
        placement=np.zeros((threads, int(flat.op_offset[-1])), np.int64),
        start=np.empty((threads, ops)),
        finish=np.empty((threads, ops)),
        send_tensor=np.empty((threads, edges), np.int64),
        send_dst=np.empty((threads, edges), np.int64),
        send_start=np.empty((threads, edges)),
        send_finish=np.empty((threads, edges)),
        order=np.empty((threads, ops + edges), np.int64),
        op_slack=np.empty(ops),
        send_slack=np.empty(edges),
        line_ptr=np.empty(devices + 1, np.int64),
        line=np.empty(ops, np.int64),
        marked=np.zeros(groups, np.bool_),
        guess=np.empty((threads, ops)),
    )


@compiled(inner=True, nogil=True)
def record_of(pool: ThreadPool, thread: int) -> Record:
    """The schedule that a thread simulated last."""
    return Record(
        pool.start[thread],
        pool.finish[thread],
        pool.send_tensor[thread],
        pool.send_dst[thread],
        pool.send_start[thread],
        pool.send_finish[thread],
        pool.order[thread],
    )


@compiled(inner=True, nogil=True)
def scratch_of(pool: ThreadPool, simulated: int, thread: int) -> Scratch:
    """The schedule that one thread simulated, and where another may work."""
    record, guess = record_of(pool, simulated), pool.guess[thread]
    return Scratch(record, pool.op_slack, pool.send_slack, pool.line_ptr, pool.line, guess, pool.marked)


@compiled(nogil=True)
def help_out(
    flat: FlatProblems, near: Neighbourhood, state: State, batch: Batch, pool: ThreadPool, thread: int, call: int
) -> None:
    """Take part in batch after batch, until this call of the search is over."""
    control, looks = pool.control, 0
    while atomics.load(control, CALL) == call:
        if atomics.load(control, NEXT) < atomics.load(control, LIMIT):
            take_part(flat, near, state, batch, pool, thread)
            looks = 0
        looks += 1
        if looks % _AWAKE == 0:
            atomics.give_way()


@compiled(nogil=True)
def dismiss(pool: ThreadPool) -> None:
    """Let those go that are in `help_out`."""
    atomics.add(pool.control, CALL, 1)


@compiled(inner=True, nogil=True)
def call(pool: ThreadPool, count: int, asked: int) -> None:
    """Give the threads `count` proposals to simulate; or groups of the schedule of thread `asked`, if that isn't -1."""
    atomics.store(pool.control, ASKED, asked)
    atomics.store(pool.control, LIMIT, count)
    atomics.store(pool.control, NEXT, 0)


@compiled(inner=True, nogil=True)
def await_all(pool: ThreadPool) -> None:
    """Wait until no thread is at work; none begins before the next call."""
    atomics.store(pool.control, NEXT, _NONE)
    looks = 0
    while atomics.load(pool.control, BUSY) > 0:
        looks += 1
        if looks % _AWAKE == 0:
            atomics.give_way()


@compiled(inner=True, nogil=True)
def take_part(
    flat: FlatProblems, near: Neighbourhood, state: State, batch: Batch, pool: ThreadPool, thread: int
) -> None:
    """Simulate proposals, or make delta estimates of moves of critical groups, until none is left."""
    control, placement, record = pool.control, pool.placement[thread], record_of(pool, thread)
    atomics.add(control, BUSY, 1)
    while True:
        i = atomics.add(control, NEXT, 1)
        if i >= atomics.load(control, LIMIT):
            break
        asked = atomics.load(control, ASKED)
        if asked >= 0:
            _estimate(flat, near, state, i, scratch_of(pool, asked, thread))
            continue
        for k in range(batch.size[i]):
            put(near, placement, batch.chosen[i, k], batch.target[i, k])
        makespan, overflow, sends = run_and_measure(flat, LONE, placement, record, batch.cutoff[i])
        batch.makespan[i], batch.overflow[i], batch.sends[i], batch.thread[i] = makespan, overflow, sends, thread
        batch.score[i] = penalised_makespan(makespan, overflow) if makespan < np.inf else np.inf
        for k in range(batch.size[i]):
            put(near, placement, batch.chosen[i, k], state.device[batch.chosen[i, k]])
        if batch.score[i] <= batch.cutoff[i]:
            atomics.least(control, LIMIT, i + 1)  # its record stays until the batch is over
            break
    atomics.add(control, BUSY, -1)


@compiled(inner=True, nogil=True)
def _estimate(flat: FlatProblems, near: Neighbourhood, state: State, i: int, scratch: Scratch) -> None:
    """Delta estimates of the moves of a critical group."""
    num_devices, group = state.salt.shape[1], state.critical[i]
    pair = i * (num_devices - 1)
    for device in range(num_devices):
        if device != state.device[group]:
            state.pair[pair, 0], state.pair[pair, 1] = group, device
            state.weight[pair] = estimate(flat, near, state.placement, scratch, group, device)
            pair += 1


@compiled(inner=True, nogil=True)
def put(near: Neighbourhood, placement: np.ndarray, group: int, device: int) -> None:
    """Place the ops of a group."""
    for k in range(near.op_ptr[group], near.op_ptr[group + 1]):
        placement[near.ops[k]] = device
