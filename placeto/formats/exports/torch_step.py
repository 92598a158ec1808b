"""The step as `run.py` of an exported pipeline runs it, with the parameters of a stage on each replica.

After its last chunk a rank adds up the gradients of its stages with the other replicas, by all-reduce in a ring (in the
cluster's order: 2 (R - 1) transfers of 1 / R of the bytes, from each replica to the next), and divides them by the
number of micro-batches. No parameter is sent, and each replica keeps the state of the optimizer. The step becomes a
graph of its own, which the simulator runs like any other. Each device keeps to the list of its chunks.

Costs that `placeto profile --processes` has measured have the time that torch takes in addition to the ops: for a
chunk, for a backward pass in two chunks in place of one, and for the additions of a ring. With other costs, a chunk
takes the time of its ops, and an addition of a ring takes the time that it would take as an op.

Legend: N ops, T tensors, S stages, R replicas, D devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from placeto.formats.exports.torch_stages import TorchStages
from placeto.problem.costs.profiled import Fit
from placeto.problem.dispatch import order_of_lists
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import GRADIENT, contributions, gradient_sums, of_no_micro_batch
from placeto.problem.problem import PlacementProblem
from placeto.simulator.result import PlacementResult
from placeto.simulator.schedule import Schedule, simulate

CHUNK, SPLIT, SUM = "torchrun.chunk", "torchrun.split", "torchrun.sum"
"""Names in measured costs for the time that torch takes in addition to the ops: for a chunk; for I and W in place of B,
for each parameter of the stage and each of its bytes; and for a ring's addition, for each tensor and byte."""
ADDITION, PART = "aten.add", "part"
Record = dict[str, Any]
Output = tuple[str, int]
"""An op and the number of its output."""


def torch_step(schedule: Schedule, stages: TorchStages, kinds: Sequence[str]) -> PlacementResult:
    """Return a placement in whole chunks as torch runs it.

    The result is of another graph, which also has the ops that torch adds to the step.

    Args:
        schedule: the schedule of the placement, with its ops in the order of the chunks.
        stages: the stages of the placement.
        kinds: (N,) the kind of each op's chunk: F, I, W or B; "" for an op in no chunk.
    """
    return _Step(schedule, stages, kinds).made()


def share(size: int, number: int, count: int) -> int:
    """Return the bytes of part `number` if `size` bytes are divided into `count` parts, as equally as possible."""
    return size * (number + 1) // count - size * number // count


def _summed(graph: ComputationGraph) -> np.ndarray:
    """(N,) bool, the ops that sum gradients, and all ops that depend on them, such as the optimizer's update.

    The update is left out because `run.py` doesn't count it in the time of a step.
    """
    found = np.zeros(graph.num_ops, bool)
    found[gradient_sums(graph).additions] = True
    found[[op for op, kind in enumerate(graph.op_types) if kind == GRADIENT]] = True
    for op in graph.topological_order.tolist():
        found[op] |= bool(found[graph.reads[op]].any())
    return found


class _Step:
    """Builds the graph of the step as torch runs it."""

    def __init__(self, schedule: Schedule, stages: TorchStages, kinds: Sequence[str]) -> None:
        self.schedule, self.problem, self.graph = schedule, schedule.problem, schedule.problem.graph
        self.stages, self.kinds, self.devices = stages, kinds, schedule.problem.cluster.devices
        self.summed, self.shared, sums = _summed(self.graph), of_no_micro_batch(self.graph), gradient_sums(self.graph)
        # Home of a parameter's gradient -> an op that adds to this gradient.
        self.addition = dict(zip(sums.home.tolist(), sums.addition[sums.ptr[:-1] + 1].tolist(), strict=True))
        self.own = self.graph.to_ops()
        self.source = self.graph.producer.tolist()  # (T,)
        self.size, self.tensors = defaultdict[int, int](int), defaultdict[int, int](int)  # of each stage's gradients
        for tensor in dict(contributions(self.graph)).values():  # one for each parameter
            stage = int(stages.stage[self.source[tensor]])
            self.size[stage] += int(self.graph.output_bytes[tensor])
            self.tensors[stage] += 1
        self.records: list[Record] = []
        self.lists: list[list[int]] = [[] for _ in self.devices]  # (D,) the ops of each device, as numbers of records

    def made(self) -> PlacementResult:
        """Build the step, and simulate it."""
        graph, given = self.graph, defaultdict[int, list[tuple[int, int]]](list)
        for home, tensor in contributions(graph):
            given[self.source[tensor]].append((home, tensor))
        self._copy()
        ran = [[op for op in ops.tolist() if self._kept(op)] for ops in self.schedule.device_order]
        held: dict[tuple[int, int], Output] = {}  # home and device -> what has been added up so far
        for device, ops in enumerate(ran):
            chunk = None
            for op in (op for op in ops if self.stages.stage[op] >= 0):
                of = int(self.stages.stage[op]), self.kinds[op], int(graph.micro_batches[op])
                if of != chunk:
                    self._chunk(device, *of)
                chunk = of
                self._add(device, self.own[op])
                for home, tensor in given[op]:
                    self._accumulate(held, home, device, tensor)
        for device, ops in enumerate(ran):
            for op in (op for op in ops if self.stages.stage[op] < 0):  # which add up losses
                self._add(device, self.own[op])
        self._sum_up()
        return self._simulated()

    def _kept(self, op: int) -> bool:
        """Whether an op is also in the step as torch runs it, under the same name."""
        return not (self.summed[op] or self.shared[op])

    def _simulated(self) -> PlacementResult:
        """Make a graph of the records, and simulate it with the ops of each device in the order of its list."""
        for record in self.records:
            record.pop("colocation", None)
            record["held"] = [each for each in record.get("held", ()) if self._kept(self.graph.index[each[0]])]
        graph = ComputationGraph.from_ops(self.graph.name, self.records, self.graph.mode)
        problem = PlacementProblem(graph, self.problem.cluster, self.problem.costs, "list")
        placement, order = np.empty(graph.num_ops, np.int64), order_of_lists(graph, self.lists)
        for device, ops in enumerate(self.lists):
            placement[ops] = device
        done = simulate(problem, placement, order=order)
        return PlacementResult(placement, done.makespan_us, done.fits, 1, 0.0, (), problem, order=order)

    def _add(self, device: int, record: Record) -> Output:
        """Append an op to the list of a device, and return its first output."""
        self.lists[device].append(len(self.records))
        self.records.append(record)
        return record["name"], 0

    def _beside(self, device: int, what: str) -> Fit | None:
        """Return the fit of `what` that was measured on devices of this kind under torchrun; None if there is none."""
        of: dict[str, Fit] = getattr(self.problem.costs, "fits", {}).get(self.devices[device].kind, {})
        return of.get(what)

    def _chunk(self, device: int, stage: int, kind: str, micro_batch: int) -> None:
        """Add an op for the time that torch takes for a chunk in addition to its ops, if that was measured."""
        if fit := self._beside(device, CHUNK):
            us, split = fit.fixed_us, self._beside(device, SPLIT)
            if kind == "W" and split:
                us += self.tensors[stage] * split.fixed_us + self.size[stage] * split.us_per_byte
            time = {"time_us": {self.devices[device].kind: us}}
            self._add(device, {"name": f"{stage}{kind}{micro_batch}", "type": CHUNK, "micro_batch": micro_batch} | time)

    def _copy(self) -> None:
        """Copy parameters, and ops of no micro-batch that depend on them, to all devices that read them."""
        graph, where, shared = self.graph, self.schedule.placement, self.shared
        order = [op for op in graph.topological_order.tolist() if not self.summed[op]]
        on: dict[int, set[int]] = defaultdict(set)
        for op in reversed(order):
            on[op] = on[op] if shared[op] and on[op] else {int(where[op])}
            for source, _ in self.own[op]["inputs"]:
                on[graph.index[source]] |= on[op]
        renamed: dict[tuple[str, int], str] = {}
        for op in (op for op in order if shared[op]):
            for device in sorted(on[op]):
                name = graph.op_names[op]
                renamed[name, device] = f"{name} on {self.devices[device].name}" if len(on[op]) > 1 else name
                inputs = [(renamed[source, device], output) for source, output in self.own[op]["inputs"]]
                self._add(device, self.own[op] | {"name": renamed[name, device], "inputs": inputs, "held": []})
        for op in (op for op in order if not shared[op]):
            record, device = self.own[op], int(where[op])
            record["inputs"] = [(renamed.get((source, device), source), n) for source, n in record["inputs"]]

    def _accumulate(self, held: dict[tuple[int, int], Output], home: int, device: int, tensor: int) -> None:
        """Add a micro-batch's part of a gradient to the sum of the parts of earlier micro-batches on the device."""
        op, graph = self.source[tensor], self.graph
        given = graph.op_names[op], tensor - int(graph.output_ptr[op])
        if (home, device) not in held:
            held[home, device] = given
            self.own[op]["resident_outputs"] = [*self.own[op].get("resident_outputs", ()), given[1]]
            return
        name, of = f"{graph.op_names[home]} of {given[0]}", int(graph.micro_batches[op])
        inputs = [held[home, device], given]
        record = {
            "name": name,
            "inputs": inputs,
            "micro_batch": of,
            "resident_outputs": [0],
            "held": [],
            "gradient_of": "",
        }
        held[home, device] = self._add(device, self.own[self.addition[home]] | record)

    def _sum_up(self) -> None:
        """Add the ops by which the replicas of each stage sum up their gradients, and divide them."""
        size, tensors = self.size, self.tensors
        for stage in sorted(size):
            ring = sorted({row[stage] for row in self.stages.devices})
            if len(ring) > 1:
                self._reduce(f"gradients of stage {stage}", ring, size[stage], tensors[stage])
            for device in ring:
                name = f"gradients of stage {stage} divided on {self.devices[device].name}"
                cost = {"flops": size[stage] / 4, "bytes_accessed": 2.0 * size[stage]}
                self._add(device, {"name": name, "type": ADDITION, "pass": "backward"} | cost)

    def _reduce(self, what: str, ring: Sequence[int], size: int, tensors: int) -> None:
        """Add an all-reduce of `size` bytes: each part goes around the ring to be summed up, then around again."""
        count = len(ring)
        parts = [share(size, number, count) for number in range(count)]
        at: list[list[Output]] = [[] for _ in parts]
        for turn in range(2 * count - 1):
            for number, part in enumerate(parts):
                device = ring[(number + turn) % count]
                record: Record = {"name": f"{what}, part {number}, {turn}", "type": PART, "inputs": list(at[number])}
                record |= {"outputs": [part], "resident_outputs": [0], "pass": "backward"}
                if 0 < turn < count:
                    record |= {"type": ADDITION, "flops": part / 4, "bytes_accessed": 3.0 * part}
                    if fit := self._beside(device, SUM):
                        us = tensors * fit.fixed_us + fit.us_per_byte * part
                        record |= {"type": SUM, "time_us": {self.devices[device].kind: us}}
                at[number] = [self._add(device, record)]
