"""Plans ranked by their chunks: the pass of a micro-batch through a stage is one op, a thousandth of a plan's ops.

The time of a chunk, and the bytes that it makes for others, are sums over the layers of its stage. Chunks become the
ops of a small graph, which the simulator runs like any other. So ranks say which plans to simulate op by op.

Legend: N ops, L layers, D devices, P stages, R replicas of a stage, M micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placeto.problem.costs.roofline import Roofline
from placeto.problem.dispatch import order_of_lists
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.label_values import BACKWARD_PASSES, GRADIENT, NO_MICRO_BATCH
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.layer_costs import FORWARD, INPUTS, SHARED, WEIGHTS, LayerCosts, Part, layer_costs, waited_for
from placeto.problem.step.layers import layers
from placeto.problem.step.plan import Plan
from placeto.simulator.memory import penalised
from placeto.simulator.schedule import Schedule, simulate

_PASS = {FORWARD: "forward", INPUTS: "backward", WEIGHTS: "backward"}
_NAME = "stage {}, part {}, micro-batch {}"
"""The name of the op that a chunk is."""


@dataclass(frozen=True, eq=False)
class _Costs(Roofline):
    """Of chunks, which are many ops each."""

    later_us: np.ndarray  # (N,) us in which the host launches all but the first of each chunk's ops


class _Chunks:
    """Collects the columns of a graph of chunks."""

    def __init__(self) -> None:
        self.name, self.device, self.micro_batch, self.part = list[str](), list[int](), list[int](), list[str]()
        self.us, self.launching_us, self.resident = list[float](), list[float](), list[int]()
        self.kind, self.gradient_of = list[str](), list[str]()
        self.size, self.output_ptr = list[int](), [0]
        self.reader, self.producer, self.output = list[int](), list[int](), list[int]()  # of each edge

    def add(
        self,
        device: int,
        us: float,
        inputs: Iterable[tuple[int, int]],
        outputs: Sequence[int],
        part: str = "forward",
        micro_batch: int = NO_MICRO_BATCH,
        resident: int = 0,
        kind: str = "chunk",
        gradient_of: str = "",
        launching_us: float = 0.0,
    ) -> int:
        """Add an op, and return its number, which is its name unless it gets another one."""
        number = len(self.device)
        self.name.append(str(number))
        self.device.append(device)
        self.micro_batch.append(micro_batch)
        self.part.append(part)
        self.us.append(us)
        self.launching_us.append(launching_us)
        self.resident.append(resident)
        self.kind.append(kind)
        self.gradient_of.append(gradient_of)
        self.size += outputs
        self.output_ptr.append(len(self.size))
        for producer, output in inputs:
            self.reader.append(number)
            self.producer.append(producer)
            self.output.append(output)
        return number

    def problem(self, like: PlacementProblem) -> tuple[PlacementProblem, np.ndarray]:
        """Return the problem of the chunks on the cluster of another problem, and their placement."""
        count, device = len(self.device), np.array(self.device)
        kinds = np.array([each.kind for each in like.cluster.devices])[device]
        busy = np.array(self.us)
        time = np.where(busy > 0.0, np.maximum(busy - like.cluster.overhead_us[device], 1e-9), 0.0)
        graph = ComputationGraph(
            name=like.graph.name,
            mode="inference",  # resident bytes have the optimizer's state
            op_names=tuple(self.name),
            op_types=tuple(self.kind),
            flops=np.zeros(count),
            bytes_accessed=np.zeros(count),
            param_bytes=np.array(self.resident, np.int64),
            colocation=np.full(count, -1),
            modules=("",) * count,
            output_ptr=np.array(self.output_ptr, np.int64),
            output_bytes=np.array(self.size, np.int64),
            edge_src=np.array(self.producer, np.int64),
            edge_dst=np.array(self.reader, np.int64),
            edge_output=np.array(self.output, np.int64),
            time_us={kind: np.where(kinds == kind, time, 0.0) for kind in np.unique(kinds).tolist()},
            passes=tuple(self.part),
            micro_batches=np.array(self.micro_batch, np.int64),
            gradient_of=tuple(self.gradient_of),
        )
        later = np.maximum(np.array(self.launching_us) - like.cluster.launch_us[device], 0.0)
        return PlacementProblem(graph, like.cluster, _Costs(later), like.dispatch), device


def chunk_problem(
    problem: PlacementProblem, plan: Plan, costs: LayerCosts | None = None
) -> tuple[PlacementProblem, np.ndarray]:
    """Return the problem of a plan's chunks, under the dispatch of the step's problem, and their placement.

    Each replica of a stage also has an op for the part of the stage's parameters that it keeps. If the stage has
    several replicas, the gradients of each part are summed over micro-batches, as those of a parameter.

    Args:
        problem: the problem of the step.
        plan: cuts it.
        costs: of its layers; None = without what the plan recomputes.
    """
    costs = costs or layer_costs(problem, plan.whole)
    cut, chunks = layers(problem, plan.whole), _Chunks()
    starts, ends = (0, *plan.borders), (*plan.borders, plan.num_layers)
    busy, launching = (
        np.stack([us[:, first:end].sum(axis=1) for first, end in zip(starts, ends, strict=True)], axis=1)
        for us in (costs.busy_us, costs.launching_us)
    )
    outputs, sources = _between_stages(costs, np.searchsorted(plan.borders, np.arange(plan.num_layers), "right"))
    ops: dict[tuple[Part, int], list[int]] = {}  # of each part of a stage, and micro-batch
    for stage, (first, end) in enumerate(zip(starts, ends, strict=True)):
        devices = plan.devices[stage]
        resident = int(costs.resident[first:end].sum()) // len(devices)
        shares = [size // len(devices) for size in outputs.get(Part(SHARED, stage), ())]
        homes = [chunks.add(device, 0.0, (), shares, resident=resident) for device in devices]
        ops[Part(SHARED, stage), NO_MICRO_BATCH] = homes

    def run(part: Part, beside: Sequence[int] = ()) -> list[int]:
        """Add a chunk for each micro-batch, with further outputs of the sizes `beside`; returns the chunks."""
        own = list[int]()
        for micro_batch in range(plan.num_micro_batches):
            device, inputs = plan.device_of(part.layer, micro_batch), list[tuple[int, int]]()
            for maker, output in sources.get(part, ()):
                at = NO_MICRO_BATCH if maker.kind == SHARED else micro_batch
                inputs += [(op, output) for op in ops.get((maker, at), ()) if at >= 0 or chunks.device[op] != device]
            sizes = [*outputs.get(part, ()), *beside]
            us, launches_us = (float(each[part.kind, part.layer, device]) for each in (busy, launching))
            chunk = chunks.add(device, us, inputs, sizes, _PASS[part.kind], micro_batch, launching_us=launches_us)
            chunks.name[chunk] = _NAME.format(part.layer, part.kind, micro_batch)
            own.append(chunk)
            ops[part, micro_batch] = own[-1:]
        return own

    for stage in range(len(plan.devices)):
        run(Part(FORWARD, stage))
    for stage in range(len(plan.devices) - 1, -1, -1):
        run(Part(INPUTS, stage))
        devices = plan.devices[stage]
        share = int(cut.parameters[starts[stage] : ends[stage]].sum()) // len(devices)
        gradients = run(Part(WEIGHTS, stage), [share] * len(devices) if len(devices) > 1 else ())
        known = len(outputs.get(Part(WEIGHTS, stage), ()))
        for replica, device in enumerate(devices if len(devices) > 1 else ()):
            name, tensors = f"{stage}/{replica}", [(chunk, known + replica) for chunk in gradients]
            total = tensors[0]
            for tensor in tensors[1:]:
                total = chunks.add(device, 0.0, [total, tensor], [share], "backward", gradient_of=name), 0
            chunks.add(device, 0.0, [total], [share], "backward", kind=GRADIENT, gradient_of=name)
    return chunks.problem(problem)


def order_of_ops(problem: PlacementProblem, plan: Plan, chunks: Schedule, joined: Sequence[bool]) -> np.ndarray:
    """Return the order (N,) of the ops of a plan's step in which each device runs its chunks one after the other.

    Args:
        problem: the problem of the step with what the plan recomputes.
        plan: cuts it.
        chunks: the schedule of the plan's chunks.
        joined: (P,) whether each stage computes the gradients of weights with those of its inputs.
    """
    graph, stage = problem.graph, plan.layers(problem).stage(plan.borders)
    backward = np.array([part in BACKWARD_PASSES for part in graph.passes])
    weights = backward & ~waited_for(graph, stage, backward) & ~np.array(joined)[stage]
    kind = np.where(weights, WEIGHTS, np.where(backward, INPUTS, FORWARD))
    begins = dict(zip(chunks.problem.graph.op_names, chunks.start_us.tolist(), strict=False))
    names = zip(stage.tolist(), kind.tolist(), graph.micro_batches.tolist(), strict=True)
    at = [begins.get(_NAME.format(*name), -1.0) for name in names]
    for op in graph.topological_order.tolist():  # a sum of gradients comes after its last term
        at[op] = max((at[op], *(at[source] for source in graph.reads[op])))
    order = np.lexsort((np.argsort(graph.topological_order), at))
    placement = plan.placement(problem)
    return order_of_lists(graph, [order[placement[order] == device].tolist() for device in range(problem.num_devices)])


def _between_stages(
    costs: LayerCosts, stage: np.ndarray
) -> tuple[dict[Part, list[int]], dict[Part, list[tuple[Part, int]]]]:
    """Return the sizes of the outputs of each part of a stage, and the parts and outputs that each of them reads.

    Args:
        costs: of L layers.
        stage: (L,) of each layer.
    """
    number, made = stage.tolist(), dict[tuple[Part, frozenset[Part]], int]()
    for (maker, readers), size in costs.made.items():
        own = Part(maker.kind, number[maker.layer])
        others = frozenset(Part(kind, number[layer]) for kind, layer in readers) - {own}
        if others:
            made[own, others] = made.get((own, others), 0) + size
    outputs, sources = dict[Part, list[int]](), dict[Part, list[tuple[Part, int]]]()
    for (maker, readers), size in made.items():
        sizes = outputs.setdefault(maker, [])
        for reader in sorted(readers):
            sources.setdefault(reader, []).append((maker, len(sizes)))
        sizes.append(size)
    return outputs, sources


class Ranked(NamedTuple):
    """A plan, and how long its chunks take in the best of some static orders."""

    score: float  # microseconds, penalised if the chunks don't fit
    us: float  # microseconds whatever the memory is, in the order that is best then
    plan: Plan


def rank_plan(problem: PlacementProblem, plan: Plan, orders: Iterable[str]) -> Ranked:
    """Simulate the chunks of a plan in some static orders."""
    chunks, placement = chunk_problem(problem, plan)
    memory, scores, times = chunks.cluster.memory, list[float](), list[float]()
    for order in orders:
        ran = simulate(chunks.under(order), placement)
        overflow = np.maximum(0, ran.peak_memory - memory) / memory
        scores.append(float(penalised(ran.makespan_us, overflow.sum())))
        times.append(ran.makespan_us)
    return Ranked(min(scores), min(times), plan)
