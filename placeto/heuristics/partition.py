"""Placers that cut the graph into parts: the expert's contiguous layers, and METIS.

Legend: G groups, D devices, P pairs of groups that exchange tensors.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pymetis

from placeto.heuristics.rules import cut_in_order, group_sum, group_times, score_within_memory
from placeto.problem.grouping import Groups
from placeto.problem.grouping.coarsening import transfer_us
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator

METIS_UFACTORS = (30, 200)  # how much the parts may be out of balance, in thousandths
_RESOLUTION = 10_000  # METIS takes whole numbers: the largest weight becomes this plus 1
_SILENCE = threading.Lock()


def try_expert(evaluator: Evaluator, seed: int) -> None:
    """Contiguous layers of equal time: the better of a cut by module and one by topological position."""
    problem, groups = evaluator.problem, evaluator.groups
    first: dict[str, int] = {}
    by_module = np.argsort([first.setdefault(module, i) for i, module in enumerate(groups.modules)], kind="stable")
    by_position = np.arange(groups.num_groups)
    work = group_times(problem, groups).mean(axis=1)

    def place(order: np.ndarray, demand: np.ndarray) -> np.ndarray:
        return cut_in_order(order, work, group_sum(groups, demand), problem)[groups.group]

    score_within_memory(evaluator, partial(place, by_module))
    if any(groups.modules) and not np.array_equal(by_module, by_position):
        score_within_memory(evaluator, partial(place, by_position))


def try_metis(evaluator: Evaluator, seed: int) -> None:
    """METIS: balanced parts with the least transfer between them (Karypis and Kumar, 1998); the best of a few tries."""
    problem, groups = evaluator.problem, evaluator.groups
    work = group_times(problem, groups).mean(axis=1)
    pairs, transfer = group_transfers(problem, groups)

    def place(options: pymetis.Options, recursive: bool, demand: np.ndarray) -> np.ndarray:
        return _partition(problem, work, group_sum(groups, demand), pairs, transfer, options, recursive)[groups.group]

    for ufactor in METIS_UFACTORS:
        for recursive in (True, False):
            options = pymetis.Options(ufactor=ufactor, seed=seed)
            score_within_memory(evaluator, partial(place, options, recursive))


def group_transfers(problem: PlacementProblem, groups: Groups) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs (P, 2) of groups that exchange tensors, and the transfer time (P,) of each pair in microseconds.

    The lower id of a pair comes first. Times are those over the mean link. A tensor counts once for each group that
    reads it.
    """
    graph, group = problem.graph, groups.group
    crossing = np.flatnonzero(group[graph.edge_src] != group[graph.edge_dst])
    tensor = graph.edge_tensor[crossing]
    reads = np.unique(np.stack([group[graph.edge_src[crossing]], group[graph.edge_dst[crossing]], tensor]), axis=1)
    ends = np.sort(reads[:2].T, axis=1).reshape(-1, 2)
    pairs, where = np.unique(ends, axis=0, return_inverse=True)
    return pairs, np.bincount(where.ravel(), weights=transfer_us(problem)[reads[2]], minlength=len(pairs))


def _partition(
    problem: PlacementProblem,
    work: np.ndarray,
    demand: np.ndarray,
    pairs: np.ndarray,
    transfer: np.ndarray,
    options: pymetis.Options,
    recursive: bool,
) -> np.ndarray:
    """Return the device (G,) of each group, with parts that are balanced by work and by memory.

    Memory counts the more, the larger the share of the cluster's memory is that the groups need.

    Args:
        problem: has the devices; each gets a part in proportion to its speed.
        work: (G,) microseconds of each group.
        demand: (G,) bytes of each group.
        pairs: (P, 2) groups that exchange tensors.
        transfer: (P,) microseconds of these tensors.
        options: of METIS.
        recursive: whether METIS bisects recursively, rather than make all parts at once.
    """
    num_groups, num_devices = len(work), problem.num_devices
    speeds = problem.speeds
    if num_devices == 1 or num_groups <= 1:
        return np.full(num_groups, speeds.argmax())
    pressure = min(1.0, demand.sum() / float(problem.cluster.memory.sum()))
    load = work / max(work.sum(), 1e-9) + pressure * demand / max(demand.sum(), 1e-9)
    directed = np.concatenate([pairs, pairs[:, ::-1]])
    weight = np.concatenate([transfer, transfer])
    by_source = np.lexsort((directed[:, 1], directed[:, 0]))
    chosen = np.sort(np.argsort(-speeds, kind="stable")[:num_groups])  # no more parts than groups
    with _silence():
        _, parts = pymetis.part_graph(
            len(chosen),
            pymetis.CSRAdjacency(
                np.searchsorted(directed[by_source, 0], np.arange(num_groups + 1)).tolist(),
                directed[by_source, 1].tolist(),
            ),
            vweights=_whole(load).tolist(),
            eweights=_whole(weight[by_source]).tolist(),
            tpwgts=(speeds[chosen] / speeds[chosen].sum()).tolist(),
            recursive=recursive,
            options=options,
        )
    return chosen[np.array(parts, np.int64)]


@contextmanager
def _silence() -> Iterator[None]:
    """Discard what METIS prints within this context.

    METIS is C code and writes to file descriptor 1 itself when a part gets empty on the way. Its result is valid all
    the same. The descriptor belongs to the whole process, so a lock lets one thread redirect it at a time. If it isn't
    open, nothing is redirected.
    """
    with _SILENCE:
        try:
            stdout = os.dup(1)
        except OSError:
            yield
            return
        libc = ctypes.CDLL(None)
        libc.fflush(None)  # buffers have output of other code, which is to be seen
        try:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 1)
            yield
        finally:
            libc.fflush(None)
            os.dup2(stdout, 1)
            os.close(stdout)


def _whole(weights: np.ndarray) -> np.ndarray:
    """Weights, which are 0 or more, scaled and rounded to whole numbers from 1 to `_RESOLUTION` + 1."""
    return 1 + np.round(weights * (_RESOLUTION / max(weights.max(initial=0.0), 1e-9))).astype(np.int64)
