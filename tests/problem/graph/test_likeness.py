"""Which graphs count as the same."""

from dataclasses import replace

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.likeness import likeness
from tests.toys import random_graph


def chain(*lengths: int) -> ComputationGraph:
    """Chains of equal ops."""
    ops = [
        {"name": f"{c}.{i}", "type": "op", "flops": 1.0, "outputs": [4], "inputs": [[f"{c}.{i - 1}", 0]] if i else []}
        for c, length in enumerate(lengths)
        for i in range(length)
    ]
    return ComputationGraph.from_ops("chains", ops)


def test_names_and_the_order_of_ops_do_not_matter() -> None:
    graph = random_graph(3, 40)
    renamed = replace(graph, name="b", op_names=tuple(f"x{i}" for i in range(40)), modules=("m",) * 40)
    assert likeness(renamed) == likeness(graph)
    place = np.random.default_rng(0).permutation(40)  # of each op
    ops = graph.to_ops()
    shuffled = ComputationGraph.from_ops("c", [ops[i] for i in np.argsort(place)])
    assert likeness(shuffled) == likeness(graph)
    assert shuffled.hash != graph.hash


def test_work_and_wiring_do() -> None:
    graph = random_graph(3, 40)
    assert likeness(random_graph(4, 40)) != likeness(graph)
    assert likeness(replace(graph, mode="inference")) != likeness(graph)
    dearer = graph.flops.copy()
    dearer[7] += 1.0
    assert likeness(replace(graph, flops=dearer)) != likeness(graph)
    slower = {kind: time.copy() for kind, time in graph.time_us.items()}
    slower["kind1"][7] += 1.0
    assert likeness(replace(graph, time_us=slower)) != likeness(graph)
    assert likeness(chain(50, 50)) != likeness(chain(40, 60)), "the same ops, each with the same neighbours"
