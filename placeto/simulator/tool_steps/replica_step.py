"""Data parallelism as frameworks run it: each device has the model, and takes some of the micro-batches.

Stages are those of ZeRO (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC
2020, arXiv 1910.02054), of n devices:

1. Each device has all weights and gradients. Gradients are summed once a step, a part of each on each device, which
   sends the new weights of that part to the others. So (n - 1) / n of the bytes are sent twice, as in an all-reduce.
   The optimizer's state is whole on each device (PyTorch's DistributedDataParallel) or divided
   (ZeroRedundancyOptimizer).
2. Each device keeps a part of weights, gradients and state. A unit's weights are gathered before its forward pass and
   stay for the backward pass. After that its gradients are summed, each part on the device that keeps it (FSDP that
   doesn't reshard after the forward pass).
3. A unit's weights are gathered again before its backward pass, so that the bytes are sent three times (FSDP; Zhao et
   al., "PyTorch FSDP", VLDB 2023, arXiv 2304.11277).

In stages 2 and 3 devices gather and sum for each of their micro-batches. The next unit is gathered while one computes,
so that two units are in memory. A unit is a block of the model, or the modules between two blocks.

Gathering and summing become ops of a graph, which the simulator runs as any other. A device runs its micro-batches one
after the other, and its ops in the order of the program, as eager PyTorch does. Transfers go over links as collectives
reach them (`placeto.problem.costs.collectives`). A tensor goes round a ring of hosts, on each to one device, which
passes it on. Gradients are first summed on each host.

Legend: N ops, E edges, M micro-batches, n devices.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import GRADIENT, contributions
from placeto.problem.graph.graph_memory import storage
from placeto.problem.graph.label_values import BACKWARD_PASSES, NO_MICRO_BATCH
from placeto.problem.graph.module_paths import unit_of
from placeto.problem.problem import PlacementProblem
from placeto.simulator.tool_steps.routes import over_hosts, shares
from placeto.simulator.tool_steps.step_graph import (
    Exchange,
    Output,
    Record,
    StepGraph,
    addition,
    exchange_links,
)


def replicated(problem: PlacementProblem, device: Sequence[int], sharding: int) -> tuple[PlacementProblem, np.ndarray]:
    """Return the problem of a training step on replicas, and the placement of its ops.

    Args:
        problem: the problem of a step that was captured in M micro-batches.
        device: (M,) device of each micro-batch. In stages 2 and 3 devices take turns, so that all have equally many.
        sharding: stage 1, 2 or 3. In stage 1, each device has the whole state of the optimizer.

    Raises:
        ValueError: the devices don't take turns in stage 2 or 3.
    """
    return _Replicas(problem, device, sharding).problem()


class _Use(NamedTuple):
    """One gathering of a unit's weights by a device."""

    unit: int
    turn: int  # number of the micro-batch among those of the device
    again: bool  # whether the weights are gathered again, for the backward pass


class _Replicas:
    """Builds the graph of a step on replicas."""

    def __init__(self, problem: PlacementProblem, device: Sequence[int], sharding: int) -> None:
        self.graph, self.sharding, self.device = problem.graph, sharding, np.array(device)
        self.devices = list(dict.fromkeys(device))  # (n,)
        if sharding > 1 and list(device) != self.devices * (len(device) // len(self.devices)):
            raise ValueError(f"in stage {sharding} devices take turns, which {list(device)} doesn't say")
        others = len(self.devices) - 1  # to which a device sends one after the other, or over a link to each at once
        hops = (2 if sharding == 1 else 1) * (others if problem.cluster.link == "egress" else min(others, 1))
        links, self.as_they_arrive = exchange_links(problem.cluster, self.devices, hops)
        self.step = StepGraph(problem, self.device[np.maximum(0, self.graph.micro_batches)], links)
        self.turn = [list(device[:micro_batch]).count(on) for micro_batch, on in enumerate(device)]  # (M,)
        self.shared = self.step.shared
        self.units, self.unit = _units(self.graph, self.shared)
        self.routes = over_hosts(self.devices, problem.cluster.host)

    def problem(self) -> tuple[PlacementProblem, np.ndarray]:
        """Build the graph; return its problem and its placement."""
        graph, step = self.graph, self.step
        kept = graph.topological_order[step.kept[graph.topological_order]]
        step.keep(kept)
        works = (np.diff(graph.input_ptr) > 0) | (graph.flops > 0.0) | (graph.bytes_accessed > 0.0)
        computing = kept[works[kept] & (graph.micro_batches[kept] != NO_MICRO_BATCH)]
        chains = {device: computing[step.device[computing] == device] for device in self.devices}
        for chain in chains.values():
            step.in_turn(chain)
        if self.sharding == 1:
            self._copy()
        else:
            self._divide(chains)
        self._sum_gradients()
        tool_problem, placement, _ = step.built()
        return tool_problem, placement

    def _exchange(self, use: _Use, size: int, fields: Record) -> Exchange:
        """Return the exchange of `size` bytes for a unit; its ops have `fields`."""
        path, turn = self.units[use.unit], f"@{use.turn}" if use.turn else ""

        def name(what: str, device: int) -> str:
            on = self.step.problem.cluster.devices[device].name
            whole = f"{path}{turn}/{'grad/' if use.again else ''}{what} on {on}"
            while whole in self.graph.index:
                whole += "'"
            return whole

        sizes = shares(size, len(self.devices))
        return Exchange(name, sizes, self.routes, fields, as_they_arrive=self.as_they_arrive)

    def _copy(self) -> None:
        """In stage 1: give each device all parameters, and what is made of them; others send it their trained parts."""
        graph, shared = self.graph, np.flatnonzero(self.shared)
        updated = np.bincount(self.unit[shared], graph.trained_bytes[shared], len(self.units))
        waits = dict[tuple[int, int], Output]()
        for unit in np.flatnonzero(updated).tolist():
            weights = self._gathered(_Use(unit, 0, False), int(updated[unit]), 0, {}, self.devices)
            trained = shared[(self.unit[shared] == unit) & (graph.trained_bytes[shared] > 0)].tolist()
            waits |= {(op, device): weights[device] for op in trained for device in self.devices}
        self.step.copy(dict.fromkeys(shared.tolist(), self.devices), waits)

    def _divide(self, chains: Mapping[int, np.ndarray]) -> None:
        """In stages 2 and 3: give each device a part of each unit, and ops that gather units for its other ops."""
        graph, step, memory = self.graph, self.step, storage(self.graph)
        readers: dict[int, dict[_Use, list[tuple[int, int]]]] = {device: defaultdict(list) for device in self.devices}
        read: dict[int, set[int]] = defaultdict(set)  # by unit: its tensors that are read
        for edge in np.flatnonzero(self.shared[graph.edge_src] & step.kept[graph.edge_dst]).tolist():
            op, source = int(graph.edge_dst[edge]), int(graph.edge_src[edge])
            use = self._use(int(self.unit[source]), op)
            readers[int(step.device[op])][use].append((op, edge))
            read[use.unit].add(int(memory[graph.edge_tensor[edge]]))
        for home, tensor in contributions(graph):  # a unit's weights stay until its gradients are computed
            op = int(graph.producer[tensor])
            readers[int(step.device[op])][self._use(int(self.unit[home]), op)].append((op, -1))
        waits: dict[_Use, dict[int, Output]] = defaultdict(dict)  # for the last op before the previous use
        for device, chain in chains.items():
            place = {op: number for number, op in enumerate(chain.tolist())}
            begun = {use: min(place.get(op, 0) for op, _ in ops) for use, ops in readers[device].items()}
            order = sorted(begun, key=begun.__getitem__)
            readers[device] = {use: readers[device][use] for use in order}
            for before, use in itertools.pairwise(order):
                if begun[before]:
                    waits[use][device] = step.signal(int(chain[begun[before] - 1]))
        for unit in range(len(self.units)):
            self._keep(unit)
        for use in dict.fromkeys(use for device in self.devices for use in readers[device]):
            size = int(graph.output_bytes[list(read[use.unit])].sum())
            on = [device for device in self.devices if use in readers[device]]
            for device, weights in self._gathered(use, size, size, waits[use], on).items():
                for op, edge in readers[device][use]:
                    if edge < 0:
                        step.wait(int(step.number[op]), weights)
                    else:
                        step.redirect(edge, weights)

    def _use(self, unit: int, op: int) -> _Use:
        again = self.sharding == 3 and self.graph.passes[op] in BACKWARD_PASSES
        return _Use(unit, self.turn[max(0, self.graph.micro_batches[op])], again)

    def _keep(self, unit: int) -> None:
        """Let each device keep a part of a unit's parameters, with gradients and the optimizer's state."""
        graph, members = self.graph, self.shared & (self.unit == unit)
        name = self._exchange(_Use(unit, 0, False), 0, {}).name
        arrays = graph.param_bytes, graph.trained_bytes, graph.state_bytes
        parts = zip(*(shares(int(array[members].sum()), len(self.devices)) for array in arrays), strict=True)
        for device, (weights, trained, state) in zip(self.devices, parts, strict=True):
            fields: Record = {"type": "parameter", "module": self.units[unit], "param_bytes": weights}
            fields |= {"trained_bytes": trained, "state_bytes": state if trained else 0}
            self.step.add(name("part", device), device, fields)

    def _gathered(
        self, use: _Use, sent: int, size: int, waits: Mapping[int, Output], on: Sequence[int]
    ) -> dict[int, Output]:
        """Let each device send its part of `sent` bytes to the devices `on`; return the weights that these gather.

        The gathered weights have `size` bytes. `waits` has, by sending device, the signal for which its part waits. In
        stages 2 and 3, what is made of parameters alone, such as copies in 16 bits, is made of each part.
        """
        graph, count = self.graph, len(self.devices)
        module: Record = {"module": self.units[use.unit]}
        exchange = self._exchange(use, sent, module)
        ops = np.flatnonzero(self.shared & (self.unit == use.unit) & (graph.bytes_accessed + graph.flops > 0))
        fields = module | {"type": "part", "resident_outputs": [0]}
        if self.sharding > 1 and len(ops):
            op = int(ops[graph.bytes_accessed[ops].argmax()])
            fields = module | {"type": graph.op_types[op], "dtype": graph.dtypes[op], "kernel": graph.kernels[op]}
            fields |= {key: float(getattr(graph, key)[ops].sum()) / count for key in ("flops", "bytes_accessed")}
        parts = []
        for device, part in zip(self.devices, exchange.sizes, strict=True):
            inputs = [waits[device]] if device in waits else []
            name = exchange.name("part sent", device)
            parts.append(self.step.add(name, device, fields | {"outputs": [part], "inputs": inputs}))
        return self.step.gather(exchange, parts, on, "weights", size)

    def _sum_gradients(self) -> None:
        """Add the ops that sum gradients of units; in stage 1, each device first sums those of its micro-batches."""
        graph, step = self.graph, self.step
        contributed: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for home, tensor in contributions(graph):  # tensors, by unit and micro-batch
            contributed[int(self.unit[home])][int(graph.micro_batches[graph.producer[tensor]])].append(tensor)
        dtype = {int(self.unit[op]): graph.dtypes[op] for op in np.flatnonzero(graph.trained_bytes).tolist()}
        for unit, tensors in contributed.items():
            fields = {"module": self.units[unit], "pass": "backward", "dtype": dtype[unit]}
            size = max(int(graph.output_bytes[each].sum()) for each in tensors.values())
            sums: dict[_Use, dict[int, list[Output]]] = defaultdict(lambda: {device: [] for device in self.devices})
            for micro_batch, device in enumerate(self.device.tolist()):
                use = _Use(unit, self.turn[micro_batch], True)
                inputs = [step.made(tensor) for tensor in tensors[micro_batch]]
                if self.sharding == 1 and use.turn:
                    name, cost = (
                        self._exchange(use, size, fields).name("gradients added", device),
                        addition(device, 1, size),
                    )
                    inputs = [step.add(name, device, fields | cost | {"inputs": inputs, "outputs": [0]})]
                sums[use if self.sharding > 1 else _Use(unit, 0, True)][device] += inputs
            for use, inputs_of in sums.items():
                exchange = self._exchange(use, size, fields)
                step.reduce(exchange, inputs_of, resident=self.sharding == 1, again=use.turn > 0)


def _units(graph: ComputationGraph, shared: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return the names of the units, and (N,) the number of each op's unit.

    Parameters, what is made of them, and their gradients have a unit; other ops have -1. Modules that are no blocks are
    one unit if no block comes between them.
    """
    names, number, unit = list[str](), dict[str, int](), np.full(graph.num_ops, -1)
    between = -1  # the unit of the modules between two blocks; -1 = none yet
    for op in graph.topological_order.tolist():
        if not shared[op] and graph.op_types[op] != GRADIENT:
            continue
        name = unit_of(graph.modules[op])
        if name not in number:
            block = name.rpartition(".")[2].isdigit()
            if block or between < 0:
                names.append(name)
            number[name] = len(names) - 1 if block or between < 0 else between
            between = -1 if block else number[name]
        unit[op] = number[name]
    return names, unit
