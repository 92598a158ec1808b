"""Are our plans for PipeDream's profiles as fast as its optimizer's, by simulation?

python -m experiments.outside_pipedream [--micro-batches 48]

PipeDream's optimizer (Narayanan et al., SOSP 2019) cuts the layers between some sets that hold whatever comes before
one of theirs, and replicates stages. A stage of r replicas takes its forward and backward time, and 4 (r - 1) / r times
its bytes of parameters over the bandwidth, divided by r; transfers of activations do not count. Its plan is found again
over these sets. Then it is simulated, with transfers and one update, as a step on many batches; beside it stands the
plan that the placer `pipeline` finds for that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import numpy as np

from experiments.command import command
from experiments.harness import DATA, published
from experiments.tables import markdown
from placeto.formats.graphs_of_others.pipedream import load
from placeto.heuristics import HEURISTICS
from placeto.heuristics.pipelines.bounded_orders import bounded_orders
from placeto.problem.cluster import STATIC_ORDERS, Cluster, Device
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.plan import Stages
from placeto.simulator.schedule import simulate

MOST_SETS = 4000
"""With more sets the table of all their pairs grows too large."""


@dataclass(frozen=True)
class PipeDream:
    """Which profiles, on what."""

    data: Path = DATA
    """folder with pipedream/ and parallel/golden.json"""
    graphs: tuple[str, ...] = ()
    """names of profiles; those in golden.json if not given"""
    workers: int = 4
    """devices"""
    bandwidth: float = 1e10
    """bytes/s between two of them"""
    micro_batches: int = 48
    """of the step that is simulated, each as large as the batch of the profile"""


@dataclass(frozen=True)
class Profile:
    """Layers in topological order, without inputs, and without parts of outputs that nothing reads."""

    graph: ComputationGraph
    names: tuple[str, ...]  # (L,)
    work_us: np.ndarray  # (L,) forward and backward
    parameters: np.ndarray  # (L,) bytes
    reads: tuple[tuple[int, ...], ...]  # (L,) of each layer the layers that it reads

    @classmethod
    def of(cls, graph: ComputationGraph) -> Profile:
        """From what the importer makes of a profile."""
        index = {name: op for op, name in enumerate(graph.op_names)}
        forward = np.array([not kind.endswith(".backward") for kind in graph.op_types])
        used = set(graph.edge_src[forward[graph.edge_dst]].tolist())
        layers = [
            graph.op_names[op]
            for op in graph.topological_order.tolist()
            if forward[op] and not graph.op_types[op].startswith("Input")
            if graph.op_types[op] != "__getitem__" or op in used
        ]
        number = {index[name]: at for at, name in enumerate(layers)}
        reads: list[set[int]] = [set() for _ in layers]
        for src, dst in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
            if src in number and dst in number:
                reads[number[dst]].add(number[src])
        own = [[index[name], *([index[f"{name}/grad"]] if f"{name}/grad" in index else [])] for name in layers]
        work_us = np.array([float(graph.time_us["*"][ops].sum()) for ops in own])
        parameters = np.array([float(graph.param_bytes[ops[0]]) for ops in own])
        return cls(graph, tuple(layers), work_us, parameters, tuple(tuple(sorted(of)) for of in reads))


@dataclass(frozen=True)
class Plan:
    """Stages with replicas."""

    stage: np.ndarray  # (L,) of each layer
    replicas: tuple[int, ...]

    def devices(self) -> Stages:
        """Of each stage, one after the other."""
        ends = np.cumsum(self.replicas).tolist()
        return tuple(tuple(range(end - count, end)) for end, count in zip(ends, self.replicas, strict=True))

    def words(self) -> str:
        """How many layers on how many replicas."""
        sizes = np.bincount(self.stage).tolist()
        return " + ".join(f"{size} x {count}" for size, count in zip(sizes, self.replicas, strict=True))


def stage_us(work_us: Any, parameters: Any, replicas: int, bandwidth: float) -> Any:
    """PipeDream's time of a stage, in microseconds, with bytes a second."""
    return (work_us + 4e6 * (replicas - 1) * parameters / (bandwidth * replicas)) / replicas


def cost_us(profile: Profile, plan: Plan, bandwidth: float) -> float:
    """The slowest stage of a plan by PipeDream's definition."""
    work, held = (np.bincount(plan.stage, of) for of in (profile.work_us, profile.parameters))
    return max(float(stage_us(*of, bandwidth)) for of in zip(work, held, plan.replicas, strict=True))


def its_sets(profile: Profile) -> set[int]:
    """The sets that PipeDream's optimizer cuts between, as bits; it begins at one source.

    A set grows by a layer that reads from it, and by all that comes before that layer. There are none if they would be
    more than `MOST_SETS`.
    """
    below = list[int]()
    for layer, reads in enumerate(profile.reads):
        below.append(reduce(or_, [1 << layer, *(below[of] for of in reads)]))
    start = 1 << next(layer for layer, reads in enumerate(profile.reads) if not reads)
    found, left = {start}, [start]
    while left:
        if len(found) > MOST_SETS:
            return set()
        ideal = left.pop()
        for layer, reads in enumerate(profile.reads):
            if not ideal >> layer & 1 and any(ideal >> of & 1 for of in reads):
                grown = ideal | below[layer]
                if grown not in found:
                    found.add(grown)
                    left.append(grown)
    return found


def best_plan(profile: Profile, sets: set[int], workers: int, bandwidth: float) -> Plan:
    """The plan whose slowest stage is fastest by PipeDream's definition, on all workers."""
    ideals = sorted(sets - {0}, key=int.bit_count)
    bits = np.array([[ideal >> layer & 1 for layer in range(len(profile.names))] for ideal in [0, *ideals]], bool)
    work, held = bits @ profile.work_us, bits @ profile.parameters
    outside = (~bits).astype(np.float32)
    within = (bits.astype(np.float32) @ outside.T == 0) & ~np.eye(len(bits), dtype=bool)  # [i, j]: i lies in j
    between = np.where(within, work - work[:, None], np.inf), np.where(within, held - held[:, None], 0.0)
    least = np.full((workers + 1, len(bits)), np.inf)
    least[0, 0] = 0.0
    came = np.zeros((workers + 1, len(bits), 2), np.int64)
    for used in range(1, workers + 1):
        for replicas in range(1, used + 1):
            slowest = np.maximum(least[used - replicas][:, None], stage_us(*between, replicas, bandwidth))
            before = slowest.argmin(axis=0)
            time_us = np.take_along_axis(slowest, before[None], 0)[0]
            better = time_us < least[used]
            least[used][better] = time_us[better]
            came[used][better] = np.stack([before, np.full(len(bits), replicas)], axis=1)[better]
    stage, counts, used, at = np.zeros(len(profile.names), np.int64), list[int](), workers, len(bits) - 1
    members = list[np.ndarray]()
    while used:
        before, replicas = came[used, at].tolist()
        members.append(bits[at] & ~bits[before])
        counts.append(replicas)
        used, at = used - replicas, before
    for number, of in enumerate(reversed(members)):
        stage[of] = number
    return Plan(stage, tuple(reversed(counts)))


def in_micro_batches(graph: ComputationGraph, count: int) -> ComputationGraph:
    """A profile's training step on so many batches, whose gradients are summed; parameters are ops of their own."""
    records = list[dict[str, Any]]()
    outputs = [graph.output_bytes[a:b].tolist() for a, b in zip(graph.output_ptr, graph.output_ptr[1:], strict=False)]
    inputs = list[list[list[Any]]]([] for _ in graph.op_names)
    for src, dst, output in zip(
        graph.edge_src.tolist(), graph.edge_dst.tolist(), graph.edge_output.tolist(), strict=True
    ):
        inputs[dst].append([graph.op_names[src], output])
    size = {name: int(held) for name, held in zip(graph.op_names, graph.param_bytes.tolist(), strict=True) if held}
    common = {"time_us": {"*": 0.0}, "outputs": [], "inputs": []}
    for name, held in size.items():
        own = {"name": f"{name}/parameter", "type": "parameter", "param_bytes": held, "outputs": [held]}
        records.append({**common, **own, "pass": "forward", "module": name, "colocation": name})
    for batch in range(count):
        for op, name in enumerate(graph.op_names):
            layer, backward = name.removesuffix("/grad"), graph.op_types[op].endswith(".backward")
            record: dict[str, Any] = {
                "name": f"{name}@{batch}",
                "type": graph.op_types[op],
                "micro_batch": batch,
                "module": layer,
            }
            record |= {"pass": "backward" if backward else "forward", "outputs": list(outputs[op])}
            record |= {"time_us": {"*": float(graph.time_us["*"][op])}}
            record["inputs"] = [[f"{src}@{batch}", output] for src, output in inputs[op]]
            if layer in size:
                record["inputs"].append([f"{layer}/parameter", 0])
                record["outputs"] += [size[layer]] if backward else []
            records.append(record)
    for op, name in enumerate(graph.op_names):
        layer = name.removesuffix("/grad")
        if layer == name or layer not in size:
            continue
        whole = [f"{name}@0", len(outputs[op])]
        shared = {**common, "pass": "backward", "module": layer, "gradient_of": f"{layer}/parameter"}
        for batch in range(1, count):
            added = f"{layer}/sum@{batch}"
            given = [whole, [f"{name}@{batch}", len(outputs[op])]]
            records.append({**shared, "name": added, "type": "aten.add", "inputs": given, "outputs": [size[layer]]})
            whole = [added, 0]
        records.append(
            {**shared, "name": f"{layer}/gradient", "type": "gradient", "inputs": [whole], "colocation": layer}
        )
    return ComputationGraph.from_ops(f"{graph.name} in {count} micro-batches", records)


def placed(profile: Profile, problem: PlacementProblem, plan: Plan) -> np.ndarray:
    """(N,) devices of the step in micro-batches, which replicas take in turn; a parameter is on the next of them."""
    devices, number = plan.devices(), {name: at for at, name in enumerate(profile.names)}
    graph, placement = problem.graph, np.zeros(problem.num_ops, np.int64)
    reader: dict[str, str] = {}
    for src, dst in zip(profile.graph.edge_src.tolist(), profile.graph.edge_dst.tolist(), strict=True):
        reader.setdefault(profile.graph.op_names[src], profile.graph.op_names[dst])
    for op, (layer, batch) in enumerate(zip(graph.modules, graph.micro_batches.tolist(), strict=True)):
        while layer not in number and layer in reader and not reader[layer].endswith("/grad"):
            layer = reader[layer]  # an input is where it is read
        at = number.get(layer, 0)
        own = devices[int(plan.stage[at])]
        placement[op] = own[(batch if batch >= 0 else at) % len(own)]
    return placement


def simulated_us(problem: PlacementProblem, placement: np.ndarray, orders: Sequence[str], bounded: bool) -> float:
    """The makespan of a step in the best of some static orders and, if asked for, of those made for the placement."""
    times = [simulate(problem.under(order), placement).makespan_us for order in orders]
    if bounded:
        times += [simulate(problem, placement, order=one).makespan_us for one in bounded_orders(problem, placement)]
    return min(times)


def main(config: PipeDream) -> None:
    """Both tables."""
    rows = published(config.data, "pipedream_plans")
    known = {row["graph"]: row["stage_ms"] for row in rows}
    head = ["profile", "its plan, layers x replicas", "as printed, ms", "found again, ms"]
    costs = [head]
    head = ["profile", "its plan, 1F1B", "its plan, best order", "its plan, bound", "pipeline", "ratio"]
    steps = [head]
    devices = tuple(Device(f"gpu:{i}", "gpu", 1e12, 1e12, 10**15) for i in range(config.workers))
    link = np.full((config.workers, config.workers), config.bandwidth / 1e6)
    cluster = Cluster("workers", devices, link, np.zeros_like(link))
    for name in config.graphs or tuple(known):
        profile = Profile.of(load(config.data / "pipedream" / f"{name}.graph.txt"))
        if not (sets := its_sets(profile)):
            print(f"{name}: left out, since it can be cut between more than {MOST_SETS} sets\n")
            continue
        its = best_plan(profile, sets, config.workers, config.bandwidth)
        asked = name in known and (config.workers, config.bandwidth) == (4, 1e10)
        printed = f"{known[name]:.2f}" if asked else ""
        costs.append([name, its.words(), printed, f"{cost_us(profile, its, config.bandwidth) / 1e3:.2f}"])
        problem = PlacementProblem(in_micro_batches(profile.graph, config.micro_batches), cluster)
        by_its = placed(profile, problem, its)
        found = HEURISTICS["pipeline"](problem)
        numbers = [
            simulated_us(problem, by_its, ("1f1b",), False) / config.micro_batches,
            (best := simulated_us(problem, by_its, STATIC_ORDERS, True) / config.micro_batches),
            cost_us(profile, its, np.inf),
            (found_us := found.makespan_us / config.micro_batches),
        ]
        steps.append([name, *(f"{us / 1e3:.2f}" for us in numbers), f"{found_us / best:.3f}"])
    print(f"{markdown(costs, 2)}\n")
    print(f"Simulated ms a batch, of a step on {config.micro_batches} batches with one update:\n\n{markdown(steps)}\n")
    print("The bound is the work of the slowest stage of its plan over its replicas: no order and no number of batches")
    print("has less. The ratio is that of the placer pipeline's step to its plan's in its best order.")


if __name__ == "__main__":
    command(main, PipeDream, "outside_pipedream", __doc__)
