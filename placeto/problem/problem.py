"""The placement problem: a graph to be placed on a cluster, with a cost model.

Legend: N ops, D devices.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from placeto.errors import GraphError
from placeto.problem.checks import INT64_MAX
from placeto.problem.cluster import DISPATCHES, Cluster
from placeto.problem.cluster.cluster import frozen
from placeto.problem.costs import EFFICIENCY, CostModel, checked_times, with_measured
from placeto.problem.dispatch import order_alone, priorities
from placeto.problem.flat import FIFO, LIST, PRIORITY, FlatProblem, flatten, longest_path, own
from placeto.problem.flat_sums import path_us
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.graph_memory import live_bytes
from placeto.problem.graph.memory_fields import DEFAULT_OPTIMIZER, NOT_HELD, OPTIMIZERS
from placeto.problem.messages import quote

# Resident bytes per parameter byte where a graph doesn't say more: parameter, gradient and Adam's moments.
PARAM_MULTIPLIER = {"training": 2 + OPTIMIZERS[DEFAULT_OPTIMIZER], "inference": 1}
_KINDS = {"fifo": FIFO, "list": LIST}
"""Dispatch -> its number in the flat arrays. All dispatches that aren't here are `PRIORITY`."""
_SHARED = ("resident_bytes", "live_bytes", "op_time", "unmeasured", "busy_us", "speeds", "lower_bound_us")
"""Properties of a problem that don't depend on its dispatch."""
_SHORTEST_US, _LONGEST_US = 1e-12, 1e18
"""Limits in microseconds: the least time that isn't 0, and the longest makespan (30,000 years).

Beyond these limits, sums and ratios of times would lose digits.
"""


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """A graph to be placed on a cluster. Hashable by identity.

    Raises:
        TypeError: the graph, the cluster or the cost model has another type; the message says what to write.
        ValueError: there is no such dispatch.
        CostsError: the cost model returns something else than a number that is not negative for each op and device.
        GraphError: the time of an op is neither 0 nor from 1e-12 to 1e18 us, the makespan could exceed 1e18 us, or the
            parameters and tensors together exceed int64 bytes; the message names the op or the graph.
    """

    graph: ComputationGraph
    cluster: Cluster
    costs: CostModel = EFFICIENCY
    dispatch: str = ""  # one of `DISPATCHES`, see `placeto.problem.dispatch`; "" = the cluster's

    def __post_init__(self) -> None:
        _check_types(self.graph, self.cluster, self.costs)
        if self.dispatch:
            _check_dispatch(self.dispatch)
        object.__setattr__(self, "dispatch", self.dispatch or self.cluster.dispatch)
        most = sum(self.graph.param_bytes.tolist()) + sum(self.graph.state_bytes.tolist())
        most += sum(self.graph.output_bytes.tolist())
        if most > INT64_MAX:
            raise GraphError(f"graph {quote(self.graph.name)}: parameters and tensors together exceed int64 bytes")
        where = f"on cluster {quote(self.cluster.name)}"
        if not ((self.op_time == 0.0) | (self.op_time >= _SHORTEST_US) & (self.op_time <= _LONGEST_US)).all():
            least, most = np.where(self.op_time > 0, self.op_time, 1.0).min(axis=1), self.op_time.max(axis=1)
            bad = np.flatnonzero((least < _SHORTEST_US) | ~(most <= _LONGEST_US))
            time, op = f"{least[bad[0]]:g} to {most[bad[0]]:g} us", quote(self.graph.op_names[bad[0]])
            rule = f"must be 0, or from {_SHORTEST_US:g} to {_LONGEST_US:g} us"
            raise GraphError(f"op {op}: its time {where} {rule}, not {time}")
        if not self.horizon_us <= _LONGEST_US:
            name = quote(self.graph.name)
            raise GraphError(f"graph {name}: its makespan {where} may be more than {_LONGEST_US:g} us")

    def __repr__(self) -> str:
        return f"PlacementProblem({self.graph!r}, {self.cluster!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the four fields alone.

        Derived arrays would come back writable. Numba takes these for another type, and would compile kernels again.
        """
        return PlacementProblem, (self.graph, self.cluster, self.costs, self.dispatch)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all that decides what a placement costs, 64 hex digits."""
        text = f"{self.graph.hash} {self.cluster.hash} {self.costs.name} {self.dispatch}"
        if any(self.graph.signatures):  # measured costs depend on them
            text += json.dumps(self.graph.signatures)
        if (self.graph.held_until != NOT_HELD).any():
            text += json.dumps(self.graph.held_until.tolist())
        if self.graph.in_place.any():
            text += json.dumps(np.flatnonzero(self.graph.in_place).tolist())
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def num_ops(self) -> int:
        """N, the number of ops."""
        return self.graph.num_ops

    @property
    def num_devices(self) -> int:
        """D, the number of devices."""
        return self.cluster.num_devices

    @property
    def width(self) -> int:
        """Number of boards of the tensor-parallel group that each device is; 1 without groups."""
        return getattr(self.costs, "ranks", 1)

    @property
    def boards(self) -> Cluster:
        """The cluster whose boards form the groups; without groups, the problem's cluster."""
        return getattr(self.costs, "boards", self.cluster)

    @property
    def setting(self) -> tuple[int, int]:
        """Width and number of micro-batches: how the step was captured."""
        return self.width, self.graph.num_micro_batches

    @cached_property
    def resident_bytes(self) -> np.ndarray:
        """(N,) int64, bytes that each op takes for the whole step: parameters, their gradients and optimizer state."""
        return frozen(self.graph.param_bytes + self.graph.state_bytes)

    @cached_property
    def live_bytes(self) -> np.ndarray:
        """(T,) int64, bytes that each tensor takes on its producer's device while it lives: 0 if it is resident."""
        return frozen(live_bytes(self.graph, self.cluster.has_cpus))

    @cached_property
    def op_time(self) -> np.ndarray:
        """(N, D) float64, microseconds: ``time_us[kind]`` if given, else ``time_us["*"]``, else by the cost model."""
        times = checked_times(self.costs, self.graph, self.cluster)
        return frozen(with_measured(times, self.graph, self.cluster))

    @cached_property
    def unmeasured(self) -> tuple[str, ...]:
        """Kinds of devices without measured op times, in the graph and in the cost model: their times are assumed."""
        found: tuple[str, ...] = getattr(self.costs, "unmeasured", lambda cluster: ())(self.cluster)
        return tuple(kind for kind in found if not {kind, "*"} & set(self.graph.time_us))

    @cached_property
    def busy_us(self) -> np.ndarray:
        """(N, D) float64, microseconds that each op keeps each device busy: its time and the overhead after it."""
        if not self.cluster.overhead_us.any():
            return self.op_time
        return frozen(self.op_time + np.where(self.op_time > 0, self.cluster.overhead_us, 0.0))

    @cached_property
    def speeds(self) -> np.ndarray:
        """(D,) float64, each device's share of the cluster's speed on this graph; the shares sum to 1.

        The speed is that at which a device runs all ops, overheads included, or its host launches them.
        """
        launching = np.count_nonzero(self.op_time, axis=0) * self.cluster.launch_us
        speed = 1.0 / np.maximum(np.maximum(self.busy_us.sum(axis=0), launching), 1e-9)
        return frozen(speed / speed.sum())

    @property
    def launching_us(self) -> np.ndarray:
        """(N, D) float64, microseconds in which the host of each device would launch each op."""
        return np.where(self.op_time > 0, self.cluster.launch_us, 0.0)

    @cached_property
    def single_device_us(self) -> float:
        """Makespan in microseconds with all ops on the best single device, equal to the simulator's to the last bit."""
        return float(self.alone_us.min())

    @cached_property
    def alone_us(self) -> np.ndarray:
        """(D,) float64, makespan in microseconds with all ops on each device, equal to the simulator's."""
        from placeto.problem.order_kernels import fill_alone  # here, since it loads numba

        order, alone = order_alone(self.graph, self.dispatch, self.priority), np.zeros(self.num_devices)
        fill_alone(self.op_time[order], own(self.cluster.overhead_us), own(self.cluster.launch_us), alone)
        return frozen(alone)

    @cached_property
    def longest_path_us(self) -> float:
        """Microseconds of the longest path of ops, each on its fastest device.

        Only the last op of the path counts with its overhead. Sums of gradients take no time: see `path_us`.
        """
        work, busy = self.op_time.min(axis=1), self.busy_us.min(axis=1)
        return float(longest_path(self.graph, path_us(self.graph, work), path_us(self.graph, busy)).max())

    @cached_property
    def lower_bound_us(self) -> float:
        """Microseconds: max(longest path, total work / D), with each op on its fastest device. No placement is faster.

        Overheads count where they can't be avoided: in the work, and after the last op of the path.
        """
        return max(self.longest_path_us, float(self.busy_us.min(axis=1).sum()) / self.num_devices)

    @property
    def horizon_us(self) -> float:
        """Microseconds after which every schedule has ended: all ops and transfers one by one, each at its slowest."""
        graph, cluster = self.graph, self.cluster
        after_ops = self.num_ops * float((cluster.overhead_us + cluster.launch_us).max())
        ops = sum(self.op_time.max(axis=1).tolist()) + after_ops
        largest = float(graph.output_bytes.max(initial=0))
        transfer = float(cluster.latency_us.max()) + largest / float(cluster.bandwidth.min()) + cluster.link_gap_us
        return ops + graph.num_edges * transfer

    @cached_property
    def arrays(self) -> FlatProblem:
        """The problem as flat arrays, which the kernels read."""
        memory, dispatch = (self.resident_bytes, self.live_bytes), _KINDS.get(self.dispatch, PRIORITY)
        later = getattr(self.costs, "later_us", None)
        return flatten(self.graph, self.cluster, self.op_time, *memory, dispatch, self.priority, later)

    def under(self, dispatch: str) -> PlacementProblem:
        """Return the same problem under another dispatch; cached.

        Raises:
            ValueError: the dispatch is unknown.
        """
        _check_dispatch(dispatch)
        if dispatch not in self._made:
            self._made[dispatch] = made = object.__new__(PlacementProblem)  # all but the dispatch is checked already
            shared = {name: vars(self)[name] for name in ("graph", "cluster", "costs", *_SHARED) if name in vars(self)}
            vars(made).update(shared, dispatch=dispatch, _made=self._made)
        return self._made[dispatch]

    @cached_property
    def _made(self) -> dict[str, PlacementProblem]:
        """Dispatch -> this problem under it, for each dispatch that `under` was called with."""
        return {self.dispatch: self}

    @cached_property
    def priority(self) -> np.ndarray:
        """(N,) int64, place of each op in the order of dispatch, from 0 on; not used under "fifo"."""
        return frozen(priorities(self.graph, self.dispatch, self.busy_us))


def check_problem(problem: object) -> None:
    """Refuse an object that isn't a `PlacementProblem`, such as a graph or the name of a cluster.

    Raises:
        TypeError: it isn't one; the message says what to write.
    """
    if not isinstance(problem, PlacementProblem):
        raise TypeError(
            f"a PlacementProblem is needed, not {problem!r}: write PlacementProblem(graph, load_cluster('4xv100'))"
        )


def _check_dispatch(dispatch: str) -> None:
    if dispatch not in DISPATCHES:
        raise ValueError(f"dispatch must be one of {', '.join(DISPATCHES)}, not {dispatch!r}")


def _check_types(graph: object, cluster: object, costs: object) -> None:
    if not isinstance(graph, ComputationGraph):
        how = (
            f"load_graph({str(graph)!r})"
            if isinstance(graph, (str, Path))
            else "capture_training(module, inputs, loss)"
        )
        raise TypeError(f"a PlacementProblem needs a ComputationGraph, not {type(graph).__name__}: write {how}")
    if not isinstance(cluster, Cluster):
        how = f"load_cluster({str(cluster)!r})" if isinstance(cluster, (str, Path)) else "load_cluster('4xv100')"
        raise TypeError(f"a PlacementProblem needs a Cluster, not {type(cluster).__name__}: write {how}")
    if not hasattr(costs, "op_time_us"):
        how = "placeto.problem.costs.load_costs('roofline')"
        raise TypeError(f"a PlacementProblem needs a cost model, not {quote(costs)}: write {how}")
    if not isinstance(getattr(costs, "name", None), str):
        raise TypeError(f"cost model {quote(costs)}: must have a name, a text that no other cost model has")
