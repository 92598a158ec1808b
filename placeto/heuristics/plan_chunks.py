"""Plans ranked by their chunks: the pass of a micro-batch through a stage is one op, a thousandth of a plan's ops.

The time of a chunk, and the bytes that it sends and keeps, are sums over the layers of its stage. Chunks become the ops
of a small graph, which the simulator runs like any other. So ranks say which plans to simulate op by op.

Legend: N ops, L layers, D devices, P stages, R replicas of a stage, M micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from placeto.problem.costs import ROOFLINE
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.label_values import BACKWARD_PASSES, NO_MICRO_BATCH
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.forward_pass import in_first
from placeto.problem.step.layers import layers
from placeto.problem.step.plan import Plan
from placeto.simulator.memory import penalised
from placeto.simulator.schedule import Schedule, simulate

FORWARD, INPUTS, WEIGHTS = range(3)


@dataclass(frozen=True, eq=False)
class LayerCosts:
    """What each layer costs in one micro-batch."""

    busy_us: np.ndarray  # (3, L, D) us of the forward pass, of the backward pass for inputs, and of that for weights
    back: np.ndarray  # (L-1,) bytes of gradients that cross each border
    kept: np.ndarray  # (L,) bytes of the forward pass that the backward pass reads
    resident: np.ndarray  # (L,) bytes of parameters, gradients and optimizer state, of the whole step


@lru_cache(maxsize=16)
def layer_costs(problem: PlacementProblem, whole: bool) -> LayerCosts:
    """Add up the costs of each layer's ops; cached.

    An op of the backward pass is for inputs if an earlier layer waits for it. Ops of no micro-batch, such as sums of
    gradients, count with the backward pass for weights, an M-th of them in each micro-batch.
    """
    graph, layer = problem.graph, layers(problem, whole).number
    count, first = graph.num_micro_batches, in_first(graph)
    back = np.array([part in BACKWARD_PASSES for part in graph.passes])
    src, dst = graph.edge_src, graph.edge_dst
    between = np.flatnonzero(first[src] & first[dst] & back[src] & back[dst])
    needed = np.zeros(graph.num_ops, bool)
    place = np.argsort(graph.topological_order)
    for edge in between[np.argsort(-place[src[between]], kind="stable")].tolist():
        source, reader = src[edge], dst[edge]
        needed[source] |= layer[reader] < layer[source] or (needed[reader] and layer[reader] == layer[source])
    kind = np.where(back, np.where(needed, INPUTS, WEIGHTS), FORWARD)
    num_layers = int(layer.max()) + 1
    busy = np.zeros((3, num_layers, problem.num_devices))
    np.add.at(busy, (kind[first], layer[first]), problem.busy_us[first])
    if count > 1:
        shared = graph.micro_batches == NO_MICRO_BATCH
        np.add.at(busy, (WEIGHTS, layer[shared]), problem.busy_us[shared] / count)
    sent, kept = np.zeros(num_layers, np.int64), np.zeros(num_layers, np.int64)
    tensors, size = graph.edge_tensor, graph.output_bytes
    lowest: dict[int, int] = {}  # gradient -> the first layer that reads it
    for edge in between.tolist():
        lowest[tensors[edge]] = min(lowest.get(tensors[edge], num_layers), int(layer[dst[edge]]))
    for tensor, reader in lowest.items():
        sent[reader : layer[graph.producer[tensor]]] += size[tensor]
    saved = np.unique(tensors[first[src] & first[dst] & ~back[src] & back[dst]])
    np.add.at(kept, layer[graph.producer[saved]], size[saved])
    resident = np.bincount(layer, weights=problem.resident_bytes, minlength=num_layers).astype(np.int64)
    return LayerCosts(busy, sent[:-1], kept, resident)


class _Chunks:
    """Collects the columns of a graph of chunks."""

    def __init__(self) -> None:
        self.device, self.micro_batch, self.part = list[int](), list[int](), list[str]()
        self.us, self.resident = list[float](), list[int]()
        self.size, self.output_ptr = list[int](), [0]
        self.edges = list[tuple[int, int, int]]()  # reader, producer, output of the producer

    def add(
        self,
        device: int,
        us: float,
        inputs: Iterable[tuple[int, int]],
        outputs: Sequence[int],
        part: str = "forward",
        micro_batch: int = NO_MICRO_BATCH,
        resident: int = 0,
    ) -> int:
        """Add an op, and return its number."""
        number = len(self.device)
        self.device.append(device)
        self.micro_batch.append(micro_batch)
        self.part.append(part)
        self.us.append(us)
        self.resident.append(resident)
        self.size += outputs
        self.output_ptr.append(len(self.size))
        self.edges += [(number, producer, output) for producer, output in inputs]
        return number

    def problem(self, like: PlacementProblem) -> tuple[PlacementProblem, np.ndarray]:
        """Return the problem of the chunks on the cluster of another problem, and their placement."""
        count, device = len(self.device), np.array(self.device)
        kinds = np.array([each.kind for each in like.cluster.devices])[device]
        busy = np.array(self.us)
        time = np.where(busy > 0.0, np.maximum(busy - like.cluster.overhead_us[device], 1e-9), 0.0)
        reader, producer, output = np.array(self.edges, np.int64).T
        graph = ComputationGraph(
            name=like.graph.name,
            mode="inference",  # resident bytes have the optimizer's state
            op_names=tuple(map(str, range(count))),
            op_types=("chunk",) * count,
            flops=np.zeros(count),
            bytes_accessed=np.zeros(count),
            param_bytes=np.array(self.resident, np.int64),
            colocation=np.full(count, -1),
            modules=("",) * count,
            output_ptr=np.array(self.output_ptr, np.int64),
            output_bytes=np.array(self.size, np.int64),
            edge_src=producer,
            edge_dst=reader,
            edge_output=output,
            time_us={kind: np.where(kinds == kind, time, 0.0) for kind in np.unique(kinds).tolist()},
            passes=tuple(self.part),
            micro_batches=np.array(self.micro_batch, np.int64),
        )
        return PlacementProblem(graph, like.cluster, ROOFLINE, like.dispatch), device


def chunk_problem(
    problem: PlacementProblem, plan: Plan, costs: LayerCosts | None = None, again: Sequence[int] = ()
) -> tuple[PlacementProblem, np.ndarray]:
    """Return the problem of a plan's chunks, under the dispatch of the step's problem, and their placement.

    A stage with several replicas also has an op for the part of its parameters that each of them keeps, one for the
    sum of the gradients of each replica, and one for the sum over replicas of each part.

    Args:
        problem: the problem of the step.
        plan: cuts it.
        costs: of its layers; None = if nothing is recomputed.
        again: (P,) bytes that each stage computes again for a chunk of the backward pass; () = none.
    """
    costs = costs or layer_costs(problem, plan.whole)
    cut, chunks = layers(problem, plan.whole), _Chunks()
    firsts, ends = (0, *plan.borders), (*plan.borders, plan.num_layers)
    forward = np.append(cut.crossing, 0)
    sent = dict[int, int]()  # micro-batch -> the chunk of the backward pass that the stage before waits for
    passed = list[dict[int, int]]()  # of each stage, micro-batch -> its chunk of the forward pass
    for stage, (first, end) in enumerate(zip(firsts, ends, strict=True)):
        replicas, seen = plan.devices[stage], set[int]()
        share = int(cut.parameters[first:end].sum()) // len(replicas)
        resident = int(costs.resident[first:end].sum()) // len(replicas)
        homes = [chunks.add(device, 0.0, (), [share], resident=resident) for device in replicas]
        busy, kept = costs.busy_us[FORWARD, first:end].sum(axis=0).tolist(), int(costs.kept[first:end].sum())
        passed.append({})
        for micro_batch in range(plan.num_micro_batches):
            device = plan.device_of(stage, micro_batch)
            inputs = [(passed[-2][micro_batch], 0)] if stage else []
            if device not in seen:  # the other micro-batches of a device find the parameters there
                inputs += [(home, 0) for home, at in zip(homes, replicas, strict=True) if at != device]
                seen.add(device)
            outputs = [int(forward[end - 1]), kept]
            passed[-1][micro_batch] = chunks.add(device, busy[device], inputs, outputs, "forward", micro_batch)
    back = np.append(0, costs.back)
    for stage in range(len(plan.devices) - 1, -1, -1):
        first, end, replicas = firsts[stage], ends[stage], plan.devices[stage]
        inward, weights = (costs.busy_us[kind, first:end].sum(axis=0).tolist() for kind in (INPUTS, WEIGHTS))
        totals: dict[int, list[tuple[int, int]]] = {device: [] for device in replicas}
        for micro_batch in range(plan.num_micro_batches):
            device, kept_by = plan.device_of(stage, micro_batch), (passed[stage][micro_batch], 1)
            inputs = [(sent[micro_batch], 0), kept_by] if micro_batch in sent else [kept_by]
            outputs = [int(back[first]), again[stage] if again else 0]
            chunk = chunks.add(device, inward[device], inputs, outputs, "backward", micro_batch)
            sent[micro_batch] = chunk
            summed = chunks.add(device, weights[device], [(chunk, 1), kept_by], [0], "backward", micro_batch)
            totals[device].append((summed, 0))
        if len(replicas) > 1:
            share = int(cut.parameters[first:end].sum()) // len(replicas)
            sums = [chunks.add(device, 0.0, totals[device], [share] * len(replicas), "backward") for device in replicas]
            for part, device in enumerate(replicas):
                chunks.add(device, 0.0, [(total, part) for total in sums], [], "backward")
    return chunks.problem(problem)


def chunk_score(problem: PlacementProblem, plan: Plan, orders: Iterable[str]) -> float:
    """Penalised makespan of a plan's chunks in the best of some static orders, in microseconds."""
    return scheduled(*chunk_problem(problem, plan), orders)[0]


def scheduled(chunks: PlacementProblem, placement: np.ndarray, orders: Iterable[str]) -> tuple[float, Schedule]:
    """Return the penalised makespan of chunks in the best of some static orders, in microseconds, and the schedule."""
    memory, scores = chunks.cluster.memory, list[tuple[float, Schedule]]()
    for order in orders:
        ran = simulate(chunks.under(order), placement)
        overflow = np.maximum(0, ran.peak_memory - memory) / memory
        scores.append((float(penalised(ran.makespan_us, overflow.sum())), ran))
    return min(scores, key=lambda scored: scored[0])
