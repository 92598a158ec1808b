"""The graph of a step as a tool runs it: ops of a captured step, and ops that the tool adds to them.

A captured step in micro-batches doesn't say which devices have which parameters, and sums up each gradient in one
place. A tool gives each device parameters of its own, or parts of them, and sums up gradients over devices. A
`StepGraph` builds the graph of its step, which the simulator runs like any other. It takes the ops of micro-batches
from the captured step, and adds the ops of the tool by three primitives:

- `StepGraph.copy` puts parameters, and what is made of them alone, on the devices that read them.
- `StepGraph.gather` sends parts of a tensor from the devices that have them to all devices that need the whole.
- `StepGraph.reduce` sums up tensors over devices, each part on one device.

Routes say by way of which devices a part travels: see `placeto.simulator.tool_steps.routes`.

Legend: N ops and T tensors of the captured step, E its edges, D devices, P parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from placeto.problem.cluster import Cluster
from placeto.problem.costs.collectives import collective_links
from placeto.problem.dispatch import order_of_lists
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import GRADIENT, gradient_sums, of_no_micro_batch
from placeto.problem.graph.label_values import ADDITION
from placeto.problem.graph.memory_fields import NOT_HELD
from placeto.problem.graph.op_columns import ranges, taken
from placeto.problem.problem import PlacementProblem
from placeto.simulator.readings.memory_timeline import GATHER, RELAY, SCATTER
from placeto.simulator.tool_steps.routes import Routes

Record = dict[str, Any]
"""Fields of an op, as in a graph file; inputs are numbers of ops in place of names."""
Output = tuple[int, int]
"""An op of the step as it runs, and the number of its output."""


def addition(device: int, count: int, size: float) -> Record:
    """Return the cost fields of an op that adds `count` tensors of `size` bytes to another."""
    return {"type": ADDITION, "flops": count * size / 4, "bytes_accessed": 3.0 * count * size}


def exchange_links(cluster: Cluster, devices: Sequence[int], hops: int) -> tuple[Cluster, bool]:
    """Return the links as collectives of devices reach them, and whether these add up parts while they arrive.

    Collectives of GPUs do. On CPUs, they are those of gloo: they reach all of a link, and additions take time as ops.

    Args:
        cluster: links by which a program copies a tensor.
        devices: those that take part.
        hops: how many hops of a collective follow one another on a link.
    """
    gpus = not any(cluster.devices[device].is_cpu for device in devices)
    return (collective_links(cluster, hops), True) if gpus and hops else (cluster, gpus)


@dataclass(frozen=True)
class Exchange:
    """What devices exchange in P parts, and how."""

    name: Callable[[str, int], str]  # makes the name of an op from what it does and from its device
    sizes: Sequence[int]  # (P,) bytes of each part
    routes: Routes  # of each part
    fields: Record = field(default_factory=dict)  # of all ops
    in_place: bool = False  # whether what devices receive or sum up has memory of its own for the whole step
    as_they_arrive: bool = False  # whether parts are added up while they arrive, so that an addition takes no time
    cost: Callable[[int, int, float], Record] = addition  # of an op that adds up parts; arguments as of `addition`

    def output(self, part: int, resident: bool = False) -> Record:
        """Return the output fields of an op that makes a part."""
        fields: Record = {"outputs": [self.sizes[part]]}
        return fields | {"resident_outputs": [0]} if resident or self.in_place else fields


class StepGraph:
    """Builds the problem of a step as a tool runs it. A device's ops are in the order in which they are added."""

    def __init__(self, problem: PlacementProblem, device: np.ndarray, links: Cluster | None = None) -> None:
        """Begin without ops.

        Args:
            problem: the problem of the captured step.
            device: (N,) the device on which `keep` puts each op of it.
            links: the cluster, with the links over which the step sends; None = the problem's.
        """
        self.problem, self.captured, self.device = problem, problem.graph, device
        self.links = links or problem.cluster
        graph = problem.graph
        # (N,) bool: ops of no micro-batch; sums of gradients, and what depends on them; ops that tools run as they are
        self.shared, self.summed, self.kept = _roles(graph)
        self.number = np.full(graph.num_ops, -1)  # (N,) of each kept op, in this graph
        self.resident = graph.resident_outputs.copy()  # (T,) bool, of kept ops
        self.copies = dict[tuple[int, int], int]()  # op of no micro-batch and device -> its copy there
        self._source = np.full(graph.num_edges, -1)  # (E,) the op that an edge comes from, if it is another one
        self._output = graph.edge_output.copy()  # (E,)
        self._like, self._placement = list[int](), list[int]()  # of each op: the captured one it is like, or -1
        self._names = list[str]()
        self._fields = dict[int, Record]()  # of an op: those that differ
        self._waits, self._signals = list[tuple[int, Output]](), set[int]()
        self._turns = list[np.ndarray]()  # (3, ops) each: op, the op that it waits for, and the signal's output

    def add(self, name: str, device: int, fields: Record, like: int = -1) -> Output:
        """Add an op, and return its first output.

        Args:
            name: name of the op.
            device: its device.
            fields: its fields; with `like`, only those that differ.
            like: number of a captured op; inputs of the new op are not taken from it.
        """
        self._fields[len(self._like)] = fields
        self._names.append(name)
        self._like.append(like)
        self._placement.append(device)
        return len(self._like) - 1, 0

    def keep(self, ops: Sequence[int] | np.ndarray) -> None:
        """Add ops of the captured step as they are, each on its device."""
        if not len(ops):
            return
        names = self.captured.op_names
        self.number[ops] = np.arange(len(self._like), len(self._like) + len(ops))
        self._names += [names[op] for op in ops]
        self._like += [int(op) for op in ops]
        self._placement += self.device[ops].tolist()

    def made(self, tensor: int) -> Output:
        """Return the output of a kept op that makes a tensor of the captured step."""
        op = int(self.captured.producer[tensor])
        return int(self.number[op]), tensor - int(self.captured.output_ptr[op])

    def wait(self, number: int, output: Output) -> None:
        """Let an op also read an output."""
        self._waits.append((number, output))

    def redirect(self, edge: int, output: Output) -> None:
        """Let a kept op read an output where the captured step has an edge."""
        self._source[edge], self._output[edge] = output

    def signal(self, op: int) -> Output:
        """Return an output of no bytes, which ops read that wait for a kept op of the captured step."""
        number = int(self.number[op])
        self._signals.add(number)
        return number, int(self.captured.output_ptr[op + 1] - self.captured.output_ptr[op])

    def in_turn(self, ops: np.ndarray) -> None:
        """Let each of some kept ops of the captured step wait for the one before it."""
        numbers, outputs = self.number[ops], np.diff(self.captured.output_ptr)[ops[:-1]]
        self._signals |= set(numbers[:-1].tolist())
        self._turns.append(np.stack([numbers[1:], numbers[:-1], outputs]))

    def copy(
        self, devices: Mapping[int, Sequence[int]], waits: Mapping[tuple[int, int], Output], shared_out: bool = False
    ) -> None:
        """Put ops of no micro-batch on devices, and let the ops that are kept there read these copies.

        Args:
            devices: op of the captured step -> its devices.
            waits: op and device -> what the copy there also waits for.
            shared_out: whether the devices share out the optimizer's state of a parameter; else, each has all of it.
        """
        graph, names, copies = self.captured, self.problem.cluster.device_names, self.copies
        trained, state = graph.trained_bytes, graph.state_bytes - graph.trained_bytes  # gradients, and what is beside
        for op in graph.topological_order.tolist():
            edges = range(graph.input_ptr[op], graph.input_ptr[op + 1])
            for device in devices.get(op, ()):
                name = f"{graph.op_names[op]} on {names[device]}" if len(devices[op]) > 1 else graph.op_names[op]
                inputs = [(copies[int(graph.edge_src[edge]), device], int(graph.edge_output[edge])) for edge in edges]
                inputs += [waits[op, device]] if (op, device) in waits else []
                part = {"state_bytes": int(trained[op] + state[op] // len(devices[op]))} if shared_out else {}
                copies[op, device], _ = self.add(name, device, {"inputs": inputs} | part, like=op)
        for edge in np.flatnonzero(self.shared[graph.edge_src] & self.kept[graph.edge_dst]).tolist():
            copied = copies[int(graph.edge_src[edge]), int(self.device[graph.edge_dst[edge]])]
            self.redirect(edge, (copied, int(graph.edge_output[edge])))

    def gather(
        self, exchange: Exchange, sent: Sequence[Output], devices: Collection[int], whole: str, size: int = 0
    ) -> dict[int, Output]:
        """Send parts to devices; return for each device the tensor that it puts together from them.

        Args:
            exchange: the parts.
            sent: (P,) each part, on the first device of its route.
            devices: the devices that need all parts; in a ring, all devices.
            whole: what they put together, for the names of ops.
            size: its bytes; 0 if it has memory of its own for the whole step.
        """
        read: dict[int, list[Output]] = {device: [] for device in devices}
        part_on = {(part, route[0].device): sent[part] for part, route in enumerate(exchange.routes.sent)}
        for hops in zip(*exchange.routes.sent, strict=True):
            for part, hop in enumerate(hops):
                ends = [end for end in hop.ends if end in read]
                if hop.before is not None:
                    part_on[part, hop.device] = part_on[part, hop.before]
                if ends and hop.before is not None:
                    name = exchange.name(f"part {part} passed on", hop.device)
                    fields: Record = {"type": RELAY, "inputs": [part_on[part, hop.before]]} | exchange.output(part)
                    part_on[part, hop.device] = self.add(name, hop.device, exchange.fields | fields)
                for end in ends:
                    read[end].append(part_on[part, hop.device])
        gathered = dict[int, Output]()
        for device, parts in read.items():
            fields = {"type": GATHER, "inputs": parts, "outputs": [size]}
            gathered[device] = self.add(exchange.name(whole, device), device, exchange.fields | fields)
        return gathered

    def reduce(
        self, exchange: Exchange, tensors: Mapping[int, Sequence[Output]], resident: bool, again: bool = False
    ) -> list[Output]:
        """Sum up gradients over devices; return the sum (P,) of each part, on the first device of its route.

        Args:
            exchange: the parts.
            tensors: device -> its gradients.
            resident: whether the gradients have memory of their own for the whole step.
            again: whether the sums are added to sums of the step that the devices have.
        """
        scattered, sums, sizes = dict[int, int](), dict[int, Output](), exchange.sizes
        whole = {"resident_outputs": range(len(sizes))} if resident else {}
        for device, inputs in tensors.items():
            fields = exchange.fields | {"type": SCATTER, "inputs": inputs, "outputs": sizes} | whole
            scattered[device], _ = self.add(exchange.name("gradients", device), device, fields)
        arrived: dict[tuple[int, int], list[Output]] = defaultdict(list)
        for hops in list(zip(*exchange.routes.summed, strict=True))[::-1]:
            for part, hop in enumerate(hops):
                inputs = [*((scattered[end], part) for end in hop.ends), *arrived[part, hop.device]]
                last = hop.before is None
                count = (0 if exchange.as_they_arrive else len(inputs) - 1) + (again and last)
                cost = exchange.cost(hop.device, count, sizes[part])
                name = exchange.name("part of gradients" if last else f"part {part} summed up", hop.device)
                fields = exchange.fields | cost | {"inputs": inputs} | exchange.output(part, last)
                sums[part] = self.add(name, hop.device, fields)
                if hop.before is not None:
                    arrived[part, hop.before].append(sums[part])
        return [sums[part] for part in range(len(sizes))]

    def all_reduce(self, exchange: Exchange, devices: Collection[int]) -> None:
        """Let devices sum up gradients in place, so that each of them has the sums."""
        sums = self.reduce(exchange, dict.fromkeys(devices, ()), resident=True)
        self.gather(exchange, sums, devices, "summed up")

    def built(self, listed: bool = False) -> tuple[PlacementProblem, np.ndarray, np.ndarray | None]:
        """Return the problem of the step, its placement, and the order of its ops.

        If the ops are `listed`, each device runs its ops strictly in the order in which they were added. Otherwise it
        runs first what is ready first, and the order is None.
        """
        graph, placement = self._graph(), np.array(self._placement, np.int64)
        problem = PlacementProblem(graph, self.links, self.problem.costs, "list" if listed else "fifo")
        lists = [np.flatnonzero(placement == device).tolist() for device in range(problem.num_devices)]
        return problem, placement, order_of_lists(graph, lists) if listed else None

    def _graph(self) -> ComputationGraph:
        """Make the arrays of the graph: of captured ops from theirs, of the others from their fields."""
        graph, like = self.captured, np.array(self._like)
        is_captured = np.ones(len(like), bool)
        is_captured[list(self._fields)] = False
        columns, source = taken(graph, like, self._fields, sorted(self._signals))
        reader = np.repeat(np.arange(len(like)), np.diff(columns["output_ptr"]))
        as_captured = (source >= 0) & is_captured[reader]
        columns["resident_outputs"] = np.where(
            as_captured, np.append(self.resident, False)[source], columns["resident_outputs"]
        )
        columns["gradient_of"] = ("",) * len(like)  # additions of a tool stay where it makes them
        last = np.append(graph.held_until, NOT_HELD)[source]
        dst, src, output = self._edges(np.flatnonzero(is_captured), like)
        return ComputationGraph(
            name=graph.name,
            mode=graph.mode,
            op_names=tuple(self._names),
            colocation=np.full(len(like), -1),
            edge_src=src,
            edge_dst=dst,
            edge_output=output,
            held_until=np.where(as_captured & (last != NOT_HELD), self.number[last], NOT_HELD),
            **columns,
        )

    def _edges(self, captured: np.ndarray, like: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the reader, the producer and the producer's output of each edge, in the order of readers."""
        graph = self.captured
        first, stop = graph.input_ptr[like[captured]], graph.input_ptr[like[captured] + 1]
        edge = ranges(first, stop - first)
        source = np.where(self._source[edge] >= 0, self._source[edge], self.number[graph.edge_src[edge]])
        inputs = [(number, *output) for number, fields in self._fields.items() for output in fields.get("inputs", ())]
        waits = [(number, *output) for number, output in self._waits]
        listed = (np.array(edges, np.int64).reshape(-1, 3).T for edges in (inputs, waits))
        more = np.concatenate([next(listed), *self._turns, next(listed)], axis=1)
        dst = np.concatenate([np.repeat(captured, stop - first), more[0]])
        order = np.argsort(dst, kind="stable")
        return (
            dst[order],
            np.concatenate([source, more[1]])[order],
            np.concatenate([self._output[edge], more[2]])[order],
        )


@lru_cache(maxsize=64)
def _roles(graph: ComputationGraph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three masks of a graph's ops (N,) bool; cached.

    They are the ops of no micro-batch; the ops that sum up gradients, and those that depend on such sums, such as the
    optimizer's update, which tools don't count in the time of a step; and all other ops.
    """
    shared, summed = of_no_micro_batch(graph), np.array([kind == GRADIENT for kind in graph.op_types])
    summed[gradient_sums(graph).additions] = True
    for op in graph.topological_order[~summed[graph.topological_order]].tolist():
        summed[op] = any(summed[source] for source in graph.reads[op])
    masks = shared, summed, ~(shared | summed)
    for mask in masks:
        mask.setflags(write=False)
    return masks
