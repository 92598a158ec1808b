"""The constraint model behind `exact`: the device of each group, and the start of each op and send.

Times are whole ticks, rounded down, so that the model's makespan never exceeds the simulator's.

Legend: N ops, T tensors, G groups, D devices, B placements of a batch.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from placeto.errors import PlacerError
from placeto.problem.grouping import Groups
from placeto.problem.problem import PlacementProblem

_HORIZON_TICKS = 10**6  # with more ticks propagation is slow: bounds change by single ticks
_MOST_TICKS = 10 * _HORIZON_TICKS  # of an op or a send, which then is in no schedule: CP-SAT's numbers have 64 bits
ROUNDING = 1e-12  # share of a time that is allowed for the rounding of floating-point numbers


def ortools() -> Any:
    """OR-tools' module ``cp_model``.

    Raises:
        PlacerError: it is not installed.
    """
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError:
        raise PlacerError("the placer exact needs OR-tools: pip install ortools") from None


class ScheduleModel:
    """A CP-SAT model of a problem; see `placeto.heuristics.exact.exact_placer` for what it leaves out of the simulator.

    Args:
        problem: what to place.
        groups: which ops stay together.
        horizon_us: schedules that take longer are left out; None = no limit.
    """

    def __init__(self, problem: PlacementProblem, groups: Groups, horizon_us: float | None = None) -> None:
        self.problem = problem
        self.group: list[int] = groups.group.tolist()  # (N,)
        if horizon_us is None:
            horizon_us = problem.horizon_us
        self.ticks_per_us = _round_down(_HORIZON_TICKS / max(horizon_us, 1e-6))
        self._horizon = self._ticks(horizon_us)
        self.model = ortools().CpModel()
        devices, new_bool = range(problem.num_devices), self.model.new_bool_var
        self.on = [[new_bool(f"group {g} on {d}") for d in devices] for g in range(groups.num_groups)]
        for row in self.on:
            self.model.add_exactly_one(row)
        self._classes = _interchangeable(problem)
        self._break_symmetry()
        self._keep_memory(groups)
        self.makespan = self._time("makespan")
        self.model.minimize(self.makespan)
        self.start = [self._time(f"start {name}") for name in problem.graph.op_names]
        self.finish = self._add_ops()
        self._add_tensors()

    def placement(self, value: Callable[[Any], int]) -> np.ndarray:
        """(G,) int64, device of each group in a solution; `value` gives the value of a variable."""
        return np.array([[value(var) for var in row] for row in self.on]).argmax(axis=1)

    def orbit(self, placement: np.ndarray, most: int) -> np.ndarray:
        """(B, G) a placement (G,) and all that exchanges of interchangeable devices make of it; at most `most` + 1."""
        orbit: dict[tuple[int, ...], None] = {}
        for images in itertools.product(*(itertools.permutations(members) for members in self._classes)):
            new = np.arange(self.problem.num_devices)
            for members, image in zip(self._classes, images, strict=True):
                new[list(members)] = image
            orbit[tuple(new[placement].tolist())] = None
            if len(orbit) > most:
                break
        return np.array(list(orbit))

    def forbid(self, placement: np.ndarray, optimum: float) -> None:
        """Rule out the placement (G,) of the optimum, and with it its orbit, which `_break_symmetry` has ruled out.

        No schedule that is left is shorter than `optimum` ticks, which becomes a constraint.
        """
        self.model.add_bool_or([~row[device] for row, device in zip(self.on, placement.tolist(), strict=True)])
        self.model.add(self.makespan >= round(optimum))

    def at_most(self, makespan_us: float) -> None:
        """Rule out schedules that take longer than `makespan_us`."""
        self.model.add(self.makespan <= self._ticks(makespan_us))

    def _ticks(self, time_us: Any) -> Any:
        """Whole ticks, rounded down: an int, or an int64 array."""
        exact = np.minimum(np.asarray(time_us) * self.ticks_per_us, _MOST_TICKS)
        ticks = np.floor(exact * (1 + ROUNDING)).astype(np.int64)  # 0.29 * 100 is a little below 29
        return int(ticks) if ticks.ndim == 0 else ticks

    def _time(self, name: str) -> Any:
        return self.model.new_int_var(0, self._horizon, name)

    def _by_device(self, group: int, ticks: np.ndarray) -> Any:
        """Of `ticks` (D,), the number at the device of a group: an int or a linear expression."""
        if (ticks == ticks[0]).all():
            return int(ticks[0])
        return sum(int(number) * var for number, var in zip(ticks, self.on[group], strict=True))

    def _break_symmetry(self) -> None:
        """Let a group use an interchangeable device only if an earlier group uses the one before it in its class."""
        for members in self._classes:
            for before, device in itertools.pairwise(members):
                for g in range(len(self.on)):
                    earlier = [self.on[h][before] for h in range(g)]
                    self.model.add_bool_or([~self.on[g][device], *earlier])

    def _keep_memory(self, groups: Groups) -> None:
        resident = np.zeros(groups.num_groups, np.int64)
        np.add.at(resident, groups.group, self.problem.resident_bytes)
        for d, memory in enumerate(self.problem.cluster.memory.tolist()):
            if resident.sum() > memory:
                load = sum(int(size) * row[d] for size, row in zip(resident, self.on, strict=True) if size)
                self.model.add(load <= memory)

    def _add_ops(self) -> list[Any]:
        """Add the ops, each on its device and after its producers; returns their ends, a list of N expressions."""
        problem, model = self.problem, self.model
        time = self._ticks(problem.op_time)
        busy = self._ticks(problem.busy_us)
        finish = []
        for i, (g, start) in enumerate(zip(self.group, self.start, strict=True)):
            finish.append(start + self._by_device(g, time[i]))
            model.add(self.makespan >= start + self._by_device(g, busy[i]))
        edges = zip(problem.graph.edge_src.tolist(), problem.graph.edge_dst.tolist(), strict=True)
        for src, dst in dict.fromkeys(edges):
            model.add(self.start[dst] >= finish[src])
        for d in range(problem.num_devices):
            self._one_at_a_time(
                [
                    (self.start[i], int(busy[i, d]), self.on[g][d], f"op {i} on {d}")
                    for i, g in enumerate(self.group)
                    if busy[i, d] > 0
                ]
            )
        return finish

    def _one_at_a_time(self, tasks: list[tuple[Any, int, Any, str]]) -> None:
        """Forbid tasks of one device or link to overlap, and let the makespan be at least the sum of their ticks.

        A task is (start, ticks, whether it takes place there, name).
        """
        new = self.model.new_optional_fixed_size_interval_var
        self.model.add_no_overlap([new(*task) for task in tasks])
        load: dict[Any, int] = defaultdict(int)
        for _, ticks, there, _ in tasks:
            load[there] += ticks
        self.model.add(self.makespan >= sum(ticks * there for there, ticks in load.items()))

    def _add_tensors(self) -> None:
        """Add the sends over links; consumers start no sooner than their deliveries."""
        problem, cluster, flat = self.problem, self.problem.cluster, self.problem.arrays
        links: dict[Any, list[tuple[Any, int, Any, str]]] = defaultdict(list)
        for tensor, (src, size) in enumerate(zip(flat.tensor_src.tolist(), flat.tensor_bytes.tolist(), strict=True)):
            home = self.group[src]
            readers: dict[int, list[int]] = defaultdict(list)  # group -> ops
            for op in flat.tensor_child[flat.tensor_ptr[tensor] : flat.tensor_ptr[tensor + 1]].tolist():
                if self.group[op] != home:
                    readers[self.group[op]].append(op)
            if not readers:
                continue
            travel_us = cluster.latency_us + size / cluster.bandwidth  # (D, D)
            gap_us = 0.0 if cluster.link == "free" else cluster.link_gap_us
            travel, hold_ticks = self._ticks(travel_us), self._ticks(travel_us + gap_us)
            if flat.broadcast[0]:
                begin = self._add_broadcast(tensor, src, home, readers, hold_ticks, links)
                begins = [begin] * problem.num_devices
            else:
                begins = [
                    self._add_unicast(tensor, src, home, readers, hold_ticks, links, dst)
                    for dst in range(problem.num_devices)
                ]
            for dst, begin in enumerate(begins):
                delivery = begin + self._by_device(home, _off_diagonal(travel[:, dst], dst))
                for group, ops in readers.items():
                    for op in dict.fromkeys(ops):
                        arrives = self.model.add(self.start[op] >= delivery)
                        arrives.only_enforce_if(self.on[group][dst], ~self.on[home][dst])
        for tasks in links.values():
            self._one_at_a_time(tasks)

    def _add_unicast(
        self,
        tensor: int,
        src: int,
        home: int,
        readers: dict[int, list[int]],
        hold_ticks: np.ndarray,
        links: dict[Any, list[tuple[Any, int, Any, str]]],
        dst: int,
    ) -> Any:
        """Add a tensor's send to the device `dst`; returns its start."""
        begin = self._after(src, f"send {tensor} to {dst}")
        reads = [self.on[group][dst] for group in readers]
        for device in range(self.problem.num_devices):
            if device == dst:
                continue
            sent = self.model.new_bool_var(f"send {tensor} from {device} to {dst}")
            self.model.add_implication(sent, self.on[home][device])
            self.model.add_bool_or([~sent, *reads])
            for read in reads:
                self.model.add_bool_or([~self.on[home][device], ~read, sent])
            link_key: dict[str, Any] = {"egress": device, "pair": (device, dst), "free": (tensor, device, dst)}
            self._hold(links[link_key[self.problem.cluster.link]], begin, int(hold_ticks[device, dst]), sent)
        return begin

    def _add_broadcast(
        self,
        tensor: int,
        src: int,
        home: int,
        readers: dict[int, list[int]],
        hold_ticks: np.ndarray,
        links: dict[Any, list[tuple[Any, int, Any, str]]],
    ) -> Any:
        """Add a tensor's one send to all devices; returns its start."""
        begin = self._after(src, f"send {tensor}")
        for device in range(self.problem.num_devices):
            readers_on = [self.on[group][device] for group in readers]
            sent = self.model.new_bool_var(f"send {tensor} from {device}")
            self.model.add_implication(sent, self.on[home][device])
            self.model.add_bool_or([~sent, *(~reader_on for reader_on in readers_on)])
            for reader_on in readers_on:
                self.model.add_bool_or([~self.on[home][device], reader_on, sent])
            if self.problem.num_devices > 1:
                self._hold(links[device], begin, int(np.delete(hold_ticks[device], device).min()), sent)
        return begin

    def _after(self, src: int, name: str) -> Any:
        begin = self._time(name)
        self.model.add(begin >= self.finish[src])
        return begin

    def _hold(self, link: list[tuple[Any, int, Any, str]], begin: Any, ticks: int, sent: Any) -> None:
        """Keep a link busy for `ticks` from `begin` on, if the send takes place."""
        if ticks > 0:
            link.append((begin, ticks, sent, f"hold {sent}"))
            self.model.add(self.makespan >= begin + ticks).only_enforce_if(sent)


def _round_down(number: float) -> float:
    """The greatest 1, 2 or 5 x a power of ten up to a number: with such ticks, times given in decimals are whole."""
    power = 10.0 ** math.floor(math.log10(number))
    return next(digit * power for digit in (5, 2, 1) if digit * power <= number)


def _off_diagonal(column: np.ndarray, index: int) -> np.ndarray:
    """A copy of `column` (D,) whose entry `index` is that of another device, so that equal numbers stay all equal."""
    column = column.copy()
    column[index] = column[index - 1]
    return column


def _interchangeable(problem: PlacementProblem) -> list[list[int]]:
    """Classes of two or more devices that can be exchanged without changing op times, memory or links."""
    cluster, number = problem.cluster, problem.num_devices
    classes: list[list[int]] = []
    for device in range(number):
        for members in classes:
            order = np.arange(number)
            order[[members[0], device]] = device, members[0]
            if (
                np.array_equal(problem.op_time[:, order], problem.op_time)
                and np.array_equal(cluster.overhead_us[order], cluster.overhead_us)
                and np.array_equal(cluster.memory[order], cluster.memory)
                and np.array_equal(cluster.bandwidth[np.ix_(order, order)], cluster.bandwidth)
                and np.array_equal(cluster.latency_us[np.ix_(order, order)], cluster.latency_us)
            ):
                members.append(device)
                break
        else:
            classes.append([device])
    return [members for members in classes if len(members) > 1]
