"""Small problems with a known optimum."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from placeto.problem.cluster import Cluster, Device
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem

SPEEDS = (0.5, 1.0, 1.5, 2.0, 4.0)
"""Of toy devices; ops of toys take their time on a device of speed 1, divided by the speed."""


def work(us: float) -> dict[str, Any]:
    """What an op record says of work: measured times, so that no cost model has a say."""
    return {"flops": us, "time_us": {f"kind{speed:g}": us / speed for speed in SPEEDS}}


def toy_cluster(devices: int = 2, speeds: tuple[float, ...] | None = None, memory: int = 10**12) -> Cluster:
    """Equal devices without overhead, first ready first served, links of 1 byte/us."""
    speeds = speeds or (1.0,) * devices
    assert set(speeds) <= set(SPEEDS)
    made = tuple(Device(f"gpu:{i}", f"kind{s:g}", s * 1e6, 1e12, memory, 0.0) for i, s in enumerate(speeds))
    return linked(made, name="toy", dispatch="fifo")


def alike(*memory: int) -> tuple[Device, ...]:
    """Devices of one kind without overhead, with so many bytes each."""
    return tuple(Device(f"gpu:{i}", "toy", 1e12, 1e12, size) for i, size in enumerate(memory))


def linked(devices: Sequence[Device], bandwidth: float = 1.0, name: str = "linked", **options: Any) -> Cluster:
    """Links of so many bytes/us between any two devices, without latency."""
    matrix = np.full((len(devices), len(devices)), bandwidth)
    return Cluster(name, tuple(devices), matrix, np.zeros_like(matrix), **options)


def fork_of_chains(chains: int, length: int, devices: int = 2) -> PlacementProblem:
    """Independent chains of ops of 10 us with tensors of 100 bytes: best is one device for each chain.

    With `chains` a multiple of the devices the optimum is chains * length * 10 / devices us.
    """
    ops = []
    for c in range(chains):
        for i in range(length):
            inputs = [[f"c{c}.{i - 1}", 0]] if i else []
            ops.append({"name": f"c{c}.{i}", "type": "op", "outputs": [100], "inputs": inputs, **work(10.0)})
    return PlacementProblem(ComputationGraph.from_ops("fork", ops), toy_cluster(devices))


def two_cliques(size: int = 6) -> PlacementProblem:
    """Two densely joined blocks with one cheap edge between them.

    Inside of a block every op feeds all later ones with 1000 bytes, so a cut there costs 1000 us; one byte joins the
    blocks. Block b starts once block a's first op is done: the optimum puts each on a device of its own and takes
    (size + 1) * 10 + 1 us.
    """
    ops = []
    for block in "ab":
        for i in range(size):
            inputs = [[f"{block}{j}", 0] for j in range(i)]
            outputs = [1000]
            if (block, i) == ("a", 0):
                outputs = [1000, 1]
            if (block, i) == ("b", 0):
                inputs = [["a0", 1]]
            ops.append({"name": f"{block}{i}", "type": "op", "outputs": outputs, "inputs": inputs, **work(10.0)})
    return PlacementProblem(ComputationGraph.from_ops("cliques", ops), toy_cluster(2))


def two_kinds(first: int, second: int) -> PlacementProblem:
    """Independent ops, so many that take 10 us on one of two devices and 40 on the other, and so many vice versa.

    They come in turn, as long as there are of both. Where the counts differ by one at most, the optimum is each op on
    the device that suits it: ten times the larger count.
    """
    kinds = [0, 1] * min(first, second) + [int(second > first)] * abs(first - second)
    names = "kind1", "kind0.5"
    ops = [
        {"name": f"o{i}", "type": "op", "time_us": {names[kind]: 10.0, names[1 - kind]: 40.0}, "outputs": [1]}
        for i, kind in enumerate(kinds)
    ]
    return PlacementProblem(ComputationGraph.from_ops("kinds", ops), toy_cluster(speeds=(1.0, 0.5)))


def random_graph(seed: int, ops: int = 60) -> ComputationGraph:
    """A random layered graph with op costs and tensors of about the same weight."""
    random = np.random.default_rng(seed)
    records = []
    for i in range(ops):
        parents = {int(i - 1 - random.integers(min(i, 12))) for _ in range(random.integers(1, 4))} if i > 2 else set()
        records.append(
            {
                "name": f"op{i}",
                "type": "op",
                **work(float(random.integers(5, 60))),
                "outputs": [int(random.integers(1, 20))],
                "inputs": [[f"op{p}", 0] for p in sorted(parents)],
            }
        )
    return ComputationGraph.from_ops(f"random{seed}", records)
