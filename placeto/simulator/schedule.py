"""Discrete-event simulation of a placed graph.

A placement of a graph in micro-batches is lowered first: see `placeto.simulator.lowering`.

Each device runs one op at a time. The problem's dispatch decides which of the ready ops is next. After an op of
non-zero cost, the device stays busy for its overhead. A tensor used on another device is sent when its producer ends,
through the sender's link. Events at equal times are ordered by kind (deliveries, links, devices) and then by name, so a
schedule never depends on memory layout. With the "k80" presets this is the simulator of Addanki et al., "Placeto",
NeurIPS 2019.

`simulate` runs one placement, and `simulate_batch` many at once. `placeto.simulator.kernel` says how to call the
kernels from other numba code on the flat arrays of a problem.

Legend: N ops, S sends, D devices, B placements of a batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from placeto.errors import PlacementError
from placeto.plumbing.compiling import compiled
from placeto.problem.dispatch import places
from placeto.problem.flat import LIST, FlatProblem, own
from placeto.problem.flat_sums import copied_tensors
from placeto.problem.messages import quote
from placeto.problem.problem import PlacementProblem, check_problem
from placeto.problem.step.plan import Plan
from placeto.simulator import kernel, memory
from placeto.simulator.lowering import lowered
from placeto.simulator.slack import fill_slack
from placeto.simulator.threads import in_parts

__all__ = ["PlacementError", "Schedule", "check_placement", "simulate", "simulate_batch"]

PARALLEL_OPS = 6_000  # ops of all rows together, about a millisecond: with fewer, waking a second thread takes longer


@dataclass(frozen=True, eq=False)
class Lowering:
    """The problem as the placement lowers it, which is what the kernels simulated. R relays follow the N ops."""

    flat: FlatProblem
    placement: np.ndarray  # (N+R,) int64, device of each op and relay
    record: kernel.Record  # what the kernel recorded


@dataclass(frozen=True, eq=False)
class Schedule:
    """When each op and each send of a step starts and ends. Sends are numbered in the order of joining their queues."""

    problem: PlacementProblem
    placement: np.ndarray  # (N,) int64, device of each op; for sums of gradients the device that lowering chose
    makespan_us: float  # time at which every device and link is idle again
    start_us: np.ndarray  # (N,) float64, start of each op
    finish_us: np.ndarray  # (N,) float64, end of each op, without the device's overhead
    send_tensor: np.ndarray  # (S,) int64, index of the tensor
    send_src: np.ndarray  # (S,) int64, device that sends
    send_dst: np.ndarray  # (S,) int64, device that receives, or -1 = broadcast
    send_start_us: np.ndarray  # (S,) float64, start of each send
    send_finish_us: np.ndarray  # (S,) float64, delivery, without the link's gap
    order: np.ndarray  # (N+S,) int64, ops and sends in the order of their starts: op i as i, send s as N + s
    edge_tensor: np.ndarray  # (E,) int64, tensor of each edge; after lowering, an op's edges may have another order
    lowering: Lowering  # the lowered problem that was simulated
    plan: Plan | None = None  # the plan whose placement it is; None for a free placement

    @property
    def num_sends(self) -> int:
        """S, the number of transfers."""
        return len(self.send_tensor)

    @cached_property
    def device_order(self) -> tuple[np.ndarray, ...]:
        """(D,) int64 arrays, the ops of each device in the order in which they start."""
        ops = self.order[self.order < self.problem.num_ops]
        return tuple(ops[self.placement[ops] == device] for device in range(self.problem.num_devices))

    @cached_property
    def busy_us(self) -> np.ndarray:
        """(D,) float64, microseconds that each device is busy: the times of its ops, and its overheads after them."""
        time = self.finish_us - self.start_us
        overhead = np.where(time > 0.0, self.problem.cluster.overhead_us[self.placement], 0.0)
        return np.bincount(self.placement, time + overhead, self.problem.num_devices)

    @cached_property
    def slack_us(self) -> np.ndarray:
        """(N,) float64, microseconds by which each op may end later without a longer makespan, in the same orders.

        A later end delays consumers, sends, the next op of the device and the next send of the link, and through these
        at last the end of the schedule. Slack is never negative, and 0 along the critical path.
        """
        low, sends = self.lowering, self.num_sends
        op_slack, send_slack = np.empty(len(low.placement)), np.empty(sends)
        fill_slack(low.flat, low.placement, low.record, sends, self.makespan_us, op_slack, send_slack)
        return op_slack[: self.problem.num_ops]

    @cached_property
    def peak_memory(self) -> np.ndarray:
        """(D,) int64, most bytes on each device at any time, after lowering.

        Parameters, their gradients and the optimizer's state count all the time, tensors and received copies while they
        are needed: see `placeto.simulator.memory.lives`.
        """
        peak, low = np.zeros(self.problem.num_devices, np.int64), self.lowering
        memory.peak_memory(low.flat, low.placement, low.record, self.num_sends, peak)
        return peak

    @cached_property
    def fits(self) -> bool:
        """Whether no device exceeds its memory."""
        return bool((self.peak_memory <= self.problem.cluster.memory).all())

    @cached_property
    def overflow(self) -> float:
        """Sum over devices of max(0, peak - memory) / memory."""
        memory = self.problem.cluster.memory
        return float((np.maximum(0, self.peak_memory - memory) / memory).sum())


def check_placement(problem: PlacementProblem, placement: np.ndarray) -> np.ndarray:
    """Return the placement as a contiguous (N,) int64 array.

    Raises:
        TypeError: `problem` is no `PlacementProblem`.
        PlacementError: there isn't one integer for each op, or a device isn't in the cluster; then the message names
            the op.
    """
    check_problem(problem)
    array = np.asarray(placement)
    if array.ndim != 1 or len(array) != problem.num_ops or not np.issubdtype(array.dtype, np.integer):
        raise PlacementError(
            f"a placement of {quote(problem.graph.name)} must be {problem.num_ops} integers, one device per op, "
            f"not {array.dtype} of shape {array.shape}"
        )
    array = np.ascontiguousarray(array, np.int64)
    if array.min() < 0 or array.max() >= problem.num_devices:
        op = int(np.flatnonzero((array < 0) | (array >= problem.num_devices))[0])
        raise PlacementError(
            f"op {quote(problem.graph.op_names[op])}: there is no device {array[op]}, "
            f"{quote(problem.cluster.name)} has 0..{problem.num_devices - 1}"
        )
    return array


def with_sums_placed(problem: PlacementProblem, placement: np.ndarray) -> np.ndarray:
    """Return a placement (N,) with sums of gradients where `simulate` computes them, whatever device was given."""
    array = check_placement(problem, placement)
    return lowered(problem.arrays, array)[1][: problem.num_ops] if len(problem.arrays.lowering) else array


def simulate(
    problem: PlacementProblem,
    placement: np.ndarray | Plan,
    cutoff: float = math.inf,
    order: np.ndarray | None = None,
    plan: Plan | None = None,
) -> Schedule:
    """Simulate one placement (N,) of integers in 0..D-1, under the problem's dispatch, and return its schedule.

    In place of a placement, a plan may be given. With both, `plan` is the one that the placement is of.

    With an `order`, a permutation (N,) of the ops, each device runs its ops strictly in this order, whatever the
    dispatch is.

    With a `cutoff` in microseconds, the simulation stops when the makespan must exceed it. Then the makespan is inf,
    and the schedule has no sends and no valid times.

    >>> from placeto.problem.cluster import load_cluster
    >>> from placeto.problem.graph import ComputationGraph
    >>> a = {"name": "a", "outputs": [76000], "time_us": {"*": 100.0}}
    >>> b = {"name": "b", "inputs": [["a", 0]], "time_us": {"*": 50.0}}
    >>> problem = PlacementProblem(ComputationGraph.from_ops("chain", [a, b]), load_cluster("2xk80"))
    >>> simulate(problem, np.array([0, 1])).start_us.tolist()  # b waits 76000 / 7600 us for its input
    [0.0, 110.0]

    Raises:
        TypeError: `problem` is no `PlacementProblem`.
        PlacementError: there isn't one device of the cluster for each op; the message says which devices are valid; or
            the order is no permutation, or contradicts the graph; then the message names an op.
        PlanError: the plan is for another step.
    """
    if isinstance(placement, Plan):
        plan, placement = placement, placement.placement(problem)
    array = check_placement(problem, placement)
    if array is placement:
        array = array.copy()
    flat = problem.arrays if order is None else in_order(problem, order)
    record = kernel.new_record(flat)
    low, place = lowered(flat, array) if len(flat.lowering) else (flat, array)  # it is slow to compile
    makespan, num_sends = kernel.run(low, place, record, float(cutoff))
    if makespan == math.inf:
        num_sends = 0
    ops, tensors, relays = problem.num_ops, len(flat.tensor_src), len(place) - problem.num_ops
    order = record.order[: len(place) + num_sends]
    order = order[(order < ops) | (order >= ops + relays)]
    shown = copied_tensors(problem.graph, problem.cluster) if relays else np.empty(0, np.int64)
    copied = np.concatenate([np.arange(tensors), np.repeat(shown, problem.cluster.num_hosts)])
    send_tensor = record.send_tensor[:num_sends]
    return Schedule(
        problem=problem,
        placement=place[:ops],
        makespan_us=makespan,
        start_us=record.start[:ops],
        finish_us=record.finish[:ops],
        send_tensor=copied[send_tensor],
        send_src=place[low.tensor_src[send_tensor]],
        send_dst=record.send_dst[:num_sends],
        send_start_us=record.send_start[:num_sends],
        send_finish_us=record.send_finish[:num_sends],
        order=np.where(order < ops, order, order - relays),
        edge_tensor=copied[_edge_tensor(problem, low)] if low is not flat else problem.graph.edge_tensor,
        lowering=Lowering(low, place, record),
        plan=plan,
    )


def _edge_tensor(problem: PlacementProblem, low: FlatProblem) -> np.ndarray:
    """(E,) tensor of each edge of the lowered problem; an op's edges may be in another order than in the graph."""
    by_child = np.argsort(low.out_child, kind="stable")
    return low.out_tensor[by_child][: problem.graph.num_edges]


def in_order(problem: PlacementProblem, order: np.ndarray) -> FlatProblem:
    """Return the problem's arrays with the dispatch "list", and an order (N,) of all ops as the devices' lists.

    Raises:
        PlacementError: the order is no permutation, or contradicts the graph; then the message names an op.
    """
    place, ranked = places(problem.graph, order), np.array(order, np.int64)
    dispatch = np.array([LIST], np.int64)
    return problem.arrays._replace(dispatch=dispatch, priority=place, ranked=ranked)


def simulate_batch(
    problem: PlacementProblem, placements: np.ndarray, order: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate B placements (B, N) of a problem, in parallel if there are enough of them; `order` is as in `simulate`.

    Returns the makespans (B,) float64 in microseconds and the memory overflows (B,) float64, the sum over devices of
    max(0, peak - memory) / memory. The result does not depend on the number of threads.

    Raises:
        PlacementError: a row isn't one device of the cluster for each op; or as in `simulate`, for the order.
        TypeError: `problem` isn't a PlacementProblem.
    """
    check_problem(problem)
    placements = np.asarray(placements)
    if placements.ndim != 2:
        raise PlacementError(f"placements must be (B, N), one row for each placement, not of shape {placements.shape}")
    if placements.shape[1] != problem.num_ops or placements.dtype.kind not in "iu":
        for row in placements[:1]:
            check_placement(problem, row)
    placements = own(placements.astype(np.int64, copy=False))
    row = _first_invalid(placements, problem.num_devices)
    if row >= 0:
        check_placement(problem, placements[row])
    makespans, overflows = np.empty(len(placements)), np.empty(len(placements))
    rows = problem.arrays if order is None else in_order(problem, order), placements, makespans, overflows
    in_parts(partial(score_rows, *rows), len(placements), placements.size >= PARALLEL_OPS)
    return makespans, overflows


@compiled()
def _first_invalid(placements: np.ndarray, devices: int) -> int:
    """Return the first row that has something else than numbers of devices, or -1."""
    for b in range(len(placements)):
        for i in range(placements.shape[1]):
            if placements[b, i] < 0 or placements[b, i] >= devices:
                return b
    return -1


@compiled()
def score_rows(
    flat: FlatProblem,
    placements: np.ndarray,
    makespans: np.ndarray,
    overflows: np.ndarray,
    first: int,
    last: int,
) -> None:
    """Fill `makespans` and `overflows` of the rows from `first` to before `last`."""
    for b in range(first, last):
        makespans[b], overflows[b] = memory.score(flat, placements[b], math.inf)
