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
after the other, and its ops in the order of the program, as eager PyTorch does. A tensor for another host is sent there
once, to one device, which passes it on. Gradients are first summed on each host.

Legend: N ops, n devices, M micro-batches.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from placeto.formats.exports.torch_step import ADDITION, Output, Record, share
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import GRADIENT, contributions, gradient_sums, of_no_micro_batch
from placeto.problem.graph.graph_memory import storage
from placeto.problem.graph.labels import BACKWARD_PASSES, NO_MICRO_BATCH
from placeto.problem.graph.module_paths import unit_of
from placeto.problem.problem import PlacementProblem
from placeto.simulator.memory_timeline import GATHER, RELAY, SCATTER


def replicated(problem: PlacementProblem, device: Sequence[int], stage: int) -> tuple[PlacementProblem, np.ndarray]:
    """Return the problem of a training step on replicas, and the placement of its ops.

    Args:
        problem: the problem of a step that was captured in M micro-batches, without the optimizer's update.
        device: (M,) device of each micro-batch. In stages 2 and 3 devices take turns, so that all have equally many.
        stage: 1, 2 or 3. In stage 1, each device has the whole state of the optimizer.

    Raises:
        ValueError: the devices don't take turns in stage 2 or 3.
    """
    return _Step(problem, device, stage).made()


class _Use(NamedTuple):
    """One gathering of a unit's weights by a device."""

    unit: int
    turn: int  # number of the micro-batch among those of the device
    again: bool  # whether the weights are gathered again, for the backward pass


class _Step:
    """Builds the graph of a step on replicas."""

    def __init__(self, problem: PlacementProblem, device: Sequence[int], stage: int) -> None:
        self.problem, self.graph, self.stage, self.device = problem, problem.graph, stage, list(device)
        self.devices = list(dict.fromkeys(self.device))
        if stage > 1 and self.device != self.devices * (len(self.device) // len(self.devices)):
            raise ValueError(f"in stage {stage} devices take turns, which {self.device} doesn't say")
        self.shared = of_no_micro_batch(self.graph)
        self.units, self.unit = _units(self.graph, self.shared)
        self.own = self.graph.to_ops()
        self.records: list[Record] = []
        self.placement: list[int] = []
        self.signals: dict[str, int] = {}  # op -> its output of no bytes

    def made(self) -> tuple[PlacementProblem, np.ndarray]:
        """Build the graph; return its problem and its placement."""
        graph, dropped = self.graph, self.shared.copy()
        dropped[gradient_sums(graph).additions] = True
        dropped[[op for op, kind in enumerate(graph.op_types) if kind == GRADIENT]] = True
        kept = [op for op in graph.topological_order.tolist() if not dropped[op]]
        chains: dict[int, list[int]] = {device: [] for device in self.devices}
        for op in kept:
            record, device = self.own[op], self._where(op)
            record.pop("colocation", None)
            record["held"] = [each for each in record.get("held", ()) if not dropped[graph.index[each[0]]]]
            self._add(record, device)
            idle = not (record["inputs"] or graph.flops[op] or graph.bytes_accessed[op])
            if graph.micro_batches[op] == NO_MICRO_BATCH or idle:
                continue
            if chains[device]:
                record["inputs"].append(self._signal(self.own[chains[device][-1]]))
            chains[device].append(op)
        if self.stage == 1:
            self._copy(kept)
        else:
            self._divide(kept, chains)
        self._sum_gradients()
        made = ComputationGraph.from_ops(graph.name, self.records, graph.mode)
        cluster, costs = self.problem.cluster, self.problem.costs
        return PlacementProblem(made, cluster, costs, "fifo"), np.array(self.placement, np.int64)

    def _where(self, op: int) -> int:
        return self.device[max(0, int(self.graph.micro_batches[op]))]

    def _turn(self, micro_batch: int) -> int:
        """Return how many micro-batches the same device has before this one."""
        return self.device[: max(0, micro_batch)].count(self.device[max(0, micro_batch)])

    def _add(self, record: Record, device: int) -> Output:
        self.records.append(record)
        self.placement.append(device)
        return record["name"], 0

    def _signal(self, record: Record) -> Output:
        """Return an op's output of no bytes, which ops that wait for the op read; add it if the op has none yet."""
        if record["name"] not in self.signals:
            self.signals[record["name"]] = len(record["outputs"])
            record["outputs"].append(0)
        return record["name"], self.signals[record["name"]]

    def _name(self, use: _Use, what: str, device: int) -> str:
        path, turn = self.units[use.unit], f"@{use.turn}" if use.turn else ""
        name = f"{path}{turn}/{'grad/' if use.again else ''}{what} on {self.problem.cluster.device_names[device]}"
        while name in self.graph.index:
            name += "'"
        return name

    def _copy(self, kept: list[int]) -> None:
        """In stage 1: give each device all parameters, and what is made of them; others send it their trained parts."""
        graph = self.graph
        updated = np.bincount(self.unit[self.shared], graph.trained_bytes[self.shared], len(self.units))
        there: dict[int, dict[int, Output]] = {}
        for unit in np.flatnonzero(updated).tolist():
            there[unit] = self._gathered(_Use(unit, 0, False), int(updated[unit]), 0, {}, self.devices)
        shared = [op for op in graph.topological_order.tolist() if self.shared[op]]
        for device in self.devices:
            name = {op: f"{graph.op_names[op]} on {self.problem.cluster.device_names[device]}" for op in shared}
            for op in shared:
                record = self.own[op] | {"name": name[op], "held": []}
                record.pop("colocation", None)
                record["inputs"] = [(name[graph.index[source]], output) for source, output in record["inputs"]]
                if graph.trained_bytes[op]:
                    record["inputs"].append(there[int(self.unit[op])][device])
                self._add(record, device)
            for op in kept:
                if self._where(op) == device:
                    inputs = [
                        (graph.index.get(source, -1), source, output) for source, output in self.own[op]["inputs"]
                    ]
                    self.own[op]["inputs"] = [(name.get(of, source), output) for of, source, output in inputs]

    def _divide(self, kept: list[int], chains: dict[int, list[int]]) -> None:
        """In stages 2 and 3: give each device a part of each unit, and ops that gather units for its other ops."""
        graph, memory = self.graph, storage(self.graph)
        readers: dict[int, dict[_Use, list[tuple[int, int]]]] = {device: defaultdict(list) for device in self.devices}
        read: dict[int, set[int]] = defaultdict(set)  # by unit: its tensors that are read
        for op in kept:
            for number, source in enumerate(graph.reads[op]):
                if self.shared[source]:
                    use = self._use(int(self.unit[source]), op)
                    readers[self._where(op)][use].append((op, number))
                    read[use.unit].add(int(memory[graph.edge_tensor[graph.input_ptr[op] + number]]))
        for home, tensor in contributions(graph):  # a unit's weights stay until its gradients are computed
            op = int(graph.producer[tensor])
            readers[self._where(op)][self._use(int(self.unit[home]), op)].append((op, len(self.own[op]["inputs"])))
            self.own[op]["inputs"].append(("", 0))
        waits: dict[_Use, dict[int, Output]] = defaultdict(dict)  # for the last op before the previous use
        for device, chain in chains.items():
            place = {op: at for at, op in enumerate(chain)}
            begun = {use: min(place.get(op, 0) for op, _ in own) for use, own in readers[device].items()}
            order = sorted(begun, key=begun.__getitem__)
            readers[device] = {use: readers[device][use] for use in order}
            for before, use in itertools.pairwise(order):
                if at := begun[before]:
                    waits[use][device] = self._signal(self.own[chain[at - 1]])
        for unit in range(len(self.units)):
            self._keep(unit)
        for use in dict.fromkeys(use for device in self.devices for use in readers[device]):
            size = int(graph.output_bytes[list(read[use.unit])].sum())
            on = [device for device in self.devices if use in readers[device]]
            for device, weights in self._gathered(use, size, size, waits[use], on).items():
                for op, number in readers[device][use]:
                    self.own[op]["inputs"][number] = weights

    def _use(self, unit: int, op: int) -> _Use:
        again = self.stage == 3 and self.graph.passes[op] in BACKWARD_PASSES
        return _Use(unit, self._turn(int(self.graph.micro_batches[op])), again)

    def _keep(self, unit: int) -> None:
        """Let each device keep a part of a unit's parameters, with gradients and the optimizer's state."""
        graph, mine = self.graph, self.shared & (self.unit == unit)
        sizes = [int(array[mine].sum()) for array in (graph.param_bytes, graph.trained_bytes, graph.state_bytes)]
        for number, device in enumerate(self.devices):
            kept = [share(size, number, len(self.devices)) for size in sizes]
            record: Record = {"name": self._name(_Use(unit, 0, False), "part", device), "type": "parameter"}
            record |= {"module": self.units[unit], "param_bytes": kept[0], "trained_bytes": kept[1]}
            self._add(record | {"state_bytes": kept[2] if kept[1] else 0}, device)

    def _gathered(
        self, use: _Use, sent: int, size: int, waits: dict[int, Output], on: Sequence[int]
    ) -> dict[int, Output]:
        """Let each device send its part of `sent` bytes to the devices `on`; return the weights that these gather.

        The gathered weights have `size` bytes. `waits` has, by sending device, the signal for which its part waits. In
        stages 2 and 3, what is made of parameters alone, such as copies in 16 bits, is made of each part.
        """
        graph, count, of = self.graph, len(self.devices), {"module": self.units[use.unit]}
        made = np.flatnonzero(self.shared & (self.unit == use.unit) & (graph.bytes_accessed + graph.flops > 0))
        part: Record = of | {"type": "part"}
        if self.stage > 1 and len(made):
            op = int(made[graph.bytes_accessed[made].argmax()])
            part |= {"type": graph.op_types[op], "dtype": graph.dtypes[op], "kernel": graph.kernels[op]}
            part |= {key: float(getattr(graph, key)[made].sum()) / count for key in ("flops", "bytes_accessed")}
        else:
            part["resident_outputs"] = [0]
        read: dict[int, list[Output]] = {device: [] for device in on}
        for number, device in enumerate(self.devices):
            part |= {"name": self._name(use, "part sent", device), "outputs": [share(sent, number, count)]}
            source = self._add(part | {"inputs": [waits[device]] if device in waits else []}, device)
            for there, near in self._hosts(device):
                wanted, passed = [other for other in there if other in read], source
                if device not in there and wanted:
                    name = self._name(use, f"part {number} passed on", near)
                    passed = self._add(
                        of | {"name": name, "type": RELAY, "inputs": [source], "outputs": part["outputs"]}, near
                    )
                for other in wanted:
                    read[other].append(passed)
        found = {}
        for device, inputs in read.items():
            record = of | {"name": self._name(use, "weights", device), "type": GATHER, "inputs": inputs}
            found[device] = self._add(record | {"outputs": [size]}, device)
        return found

    def _hosts(self, device: int) -> list[tuple[list[int], int]]:
        """Return for each host its devices, and the one that has the same number within its host as `device` has.

        The device's own host is first. The others follow in turn, so that not all devices send to one host at once.
        """
        host, together = self.problem.cluster.host, defaultdict[int, list[int]](list)
        for other in self.devices:
            together[int(host[other])].append(other)
        names, number = list(together), together[own := int(host[device])].index(device)
        turn = names.index(own)
        return [(there, there[number % len(there)]) for of in names[turn:] + names[:turn] for there in [together[of]]]

    def _sum_gradients(self) -> None:
        """Add the ops that sum gradients of units; in stage 1, each device first sums those of its micro-batches."""
        graph = self.graph
        given: dict[tuple[int, int], list[int]] = defaultdict(list)  # tensors, by unit and micro-batch
        for home, tensor in contributions(graph):
            given[int(self.unit[home]), int(graph.micro_batches[graph.producer[tensor]])].append(tensor)
        dtype = {int(self.unit[op]): graph.dtypes[op] for op in np.flatnonzero(graph.trained_bytes).tolist()}
        for unit in dict.fromkeys(unit for unit, _ in given):
            both = {"module": self.units[unit], "pass": "backward", "dtype": dtype[unit]}
            size = max(int(graph.output_bytes[tensors].sum()) for (of, _), tensors in given.items() if of == unit)
            parts: dict[_Use, dict[int, list[Output]]] = defaultdict(lambda: {device: [] for device in self.devices})
            for micro_batch, device in enumerate(self.device):
                use = _Use(unit, self._turn(micro_batch), True)
                of = [(graph.producer[tensor], tensor) for tensor in given[unit, micro_batch]]
                inputs = [(graph.op_names[op], tensor - int(graph.output_ptr[op])) for op, tensor in of]
                if self.stage == 1 and use.turn:
                    name = self._name(use, "gradients added", device)
                    inputs = [self._add(both | _sum(name, inputs, 1, size, [0]), device)]
                parts[use if self.stage > 1 else _Use(unit, 0, True)][device] += inputs
            for use, inputs_of in parts.items():
                self._reduced(use, inputs_of, size, both)

    def _reduced(self, use: _Use, inputs: dict[int, list[Output]], size: int, both: Record) -> None:
        """Sum gradients of `size` bytes, each part on the device that keeps it."""
        count = len(self.devices)
        sizes = [share(size, number, count) for number in range(count)]
        whole = {"resident_outputs": list(range(count))} if self.stage == 1 else {}
        for device, given in inputs.items():
            record = both | {"name": self._name(use, "gradients", device), "type": SCATTER, "inputs": given}
            self._add(record | {"outputs": sizes} | whole, device)
        mine = {
            device: {other: (self._name(use, "gradients", other), number) for other in self.devices}
            for number, device in enumerate(self.devices)
        }
        hosts = {device: self._hosts(device) for device in self.devices}
        elsewhere: dict[int, list[Output]] = {device: [] for device in self.devices}
        for turn in range(len(hosts[self.devices[0]]) - 1, 0, -1):  # each host sends to the next, then to that after it
            for number, device in enumerate(self.devices):
                there, near = hosts[device][turn]
                theirs = [mine[device][other] for other in there]
                name = self._name(use, f"part {number} summed up", near)
                added = _sum(name, theirs, len(theirs) - 1, sizes[number], [sizes[number]])
                elsewhere[device].append(self._add(both | added, near))
        for number, device in enumerate(self.devices):
            parts = [mine[device][other] for other in hosts[device][0][0]] + elsewhere[device]
            name = self._name(use, "part of gradients", device)
            additions = len(parts) - 1 + (use.turn > 0)
            self._add(both | _sum(name, parts, additions, sizes[number], []), device)


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
        name = unit_of(graph.modules[op], ())
        if name not in number:
            block = name.rpartition(".")[2].isdigit()
            if block or between < 0:
                names.append(name)
            number[name] = len(names) - 1 if block or between < 0 else between
            between = -1 if block else number[name]
        unit[op] = number[name]
    return names, unit


def _sum(name: str, inputs: list[Output], additions: int, size: int, outputs: list[int]) -> Record:
    """Return an op that makes a number of additions of tensors of `size` bytes."""
    cost = {"flops": additions * size / 4, "bytes_accessed": 3.0 * additions * size}
    return {"name": name, "type": ADDITION, "inputs": inputs, "outputs": outputs, **cost}
