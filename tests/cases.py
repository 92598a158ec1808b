"""Problems that tests of several rooms place."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from tests.toys import random_graph, toy_cluster

MB = 1_000_000


def problem_of(
    ops: Sequence[dict[str, Any]], cluster: Cluster | str | int = 2, mode: str = "training", **options: Any
) -> PlacementProblem:
    """Ops on a cluster, on a preset, or on so many toy devices."""
    if isinstance(cluster, int):
        cluster = toy_cluster(cluster)
    elif isinstance(cluster, str):
        cluster = load_cluster(cluster)
    return PlacementProblem(ComputationGraph.from_ops("ops", ops, mode), cluster, **options)


def toy_problem(seed: int, ops: int = 60, devices: int = 2, *options: Any) -> PlacementProblem:
    """A random graph on toy devices."""
    return PlacementProblem(random_graph(seed, ops), toy_cluster(devices, *options))


def forks(chains: int, length: int, cluster: str) -> PlacementProblem:
    """Independent chains, 1,000 us per op, 1 MB between ops: the optimum has them apart."""
    ops = [
        {"name": f"c{c}:{i}", "time_us": {"*": 1000.0}, "outputs": [MB], "inputs": [[f"c{c}:{i - 1}", 0]] if i else []}
        for i in range(length)
        for c in range(chains)
    ]
    return problem_of(ops, cluster)


def devices(*memory: int, speeds: tuple[float, ...] | None = None) -> Cluster:
    """Toy devices with so many bytes each."""
    cluster = toy_cluster(len(memory), speeds)
    own = [replace(device, memory=size) for device, size in zip(cluster.devices, memory, strict=True)]
    return replace(cluster, devices=tuple(own))


def chain(*param_bytes: int, output: int = 0, modules: bool = False) -> ComputationGraph:
    """Ops in a row, in inference: a parameter takes its size and no more."""
    ops = []
    for i, size in enumerate(param_bytes):
        op = {"name": f"op{i:02}", "flops": 10.0, "param_bytes": size, "outputs": [output]}
        op["inputs"] = [[f"op{i - 1:02}", 0]] if i else []
        op["module"] = f"block{i // 4}.layer{i}" if modules else ""
        ops.append(op)
    return ComputationGraph.from_ops("chain", ops, "inference")


def hourglass(depth: int, size: int) -> ComputationGraph:
    """Tensors that are made on the way down are held until they are read on the way up, the first one longest."""
    ops = []
    for i in range(depth):
        inputs = [[f"down{i - 1}", 0]] if i else []
        ops.append({"name": f"down{i}", "flops": 10.0, "outputs": [size], "inputs": inputs})
    for i in reversed(range(depth)):
        inputs = [[f"down{i}", 0]] + ([[f"up{i + 1}", 0]] if i < depth - 1 else [])
        ops.append({"name": f"up{i}", "flops": 10.0, "outputs": [1], "inputs": inputs})
    return ComputationGraph.from_ops("hourglass", ops)
