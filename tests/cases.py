"""Problems that tests of several rooms place."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from placeto.problem.cluster import DISPATCHES, Cluster, load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from tests.toys import random_graph, toy_cluster, work

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


def toy_problem(seed: int, ops: int = 60, devices: int = 2, *options: Any, **named: Any) -> PlacementProblem:
    """A random graph on toy devices."""
    return PlacementProblem(random_graph(seed, ops), toy_cluster(devices, *options, **named))


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


def with_devices(cluster: Cluster | str, **fields: Any) -> Cluster:
    """A cluster, or a preset, all of whose devices have these values, such as memory=10**9."""
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    return replace(cluster, devices=tuple(replace(device, **fields) for device in cluster.devices))


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


MODES = [("unicast", "egress"), ("unicast", "pair"), ("broadcast", "egress"), ("unicast", "free")]


def uneven_graph(rng: np.random.Generator, ops: int, colocated: float = 0.2) -> ComputationGraph:
    """Ops of few different times, some of them free, some to be together, with several outputs and perhaps modules."""
    modular, records = rng.random() < 0.5, []
    for i in range(ops):
        parents = rng.choice(i, size=min(i, int(rng.integers(0, 4))), replace=False) if i else []
        us = float(rng.integers(0, 5)) * 10.0
        record = {"name": f"op{i}", "time_us": {"*": us, **work(us)["time_us"]}, "param_bytes": int(rng.integers(30))}
        record["outputs"] = [int(rng.integers(40)), int(rng.integers(40))]
        record["inputs"] = [[f"op{p}", int(rng.integers(2))] for p in parents]
        if rng.random() < colocated:
            record["colocation"] = str(rng.integers(ops))
        if modular:
            record["module"] = f"m{rng.integers(2)}.{rng.integers(3)}"
        records.append(record)
    return ComputationGraph.from_ops("uneven", records)


def uneven_cluster(rng: np.random.Generator, devices: int, memory: int = 10**6) -> Cluster:
    """Unequal speeds, overheads and links, in any mode, or all alike."""
    equal = rng.random() < 0.3
    speeds = (1.0,) * devices if equal else tuple(rng.choice([0.5, 1.0, 2.0], devices).tolist())
    base = toy_cluster(devices, speeds, memory)
    shape, (transfers, link) = (devices, devices), MODES[rng.integers(len(MODES))]
    return replace(
        base,
        devices=tuple(replace(device, overhead_us=float(rng.choice([0.0, 3.0]))) for device in base.devices),
        bandwidth=np.ones(shape) if equal else rng.choice([0.5, 1.0, 4.0], shape),
        latency_us=np.zeros(shape) if equal else rng.choice([0.0, 5.0], shape),
        link_gap_us=float(rng.choice([0.0, 2.0])),
        transfers=transfers,
        link=link,
        dispatch=str(rng.choice(DISPATCHES)),
    )


def uneven_problem(rng: np.random.Generator, ops: int, devices: int, colocated: float = 0.2) -> PlacementProblem:
    """Of such ops and devices, with memory for all of them, or hardly."""
    graph = uneven_graph(rng, ops, colocated)
    return PlacementProblem(graph, uneven_cluster(rng, devices, int(rng.choice([50 * ops, 80 * ops, 10**6]))))
