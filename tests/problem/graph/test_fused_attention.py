"""The work and the memory of attention in one kernel, counted by hand."""

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.fused_attention import inside, work_on_gpus
from placeto.problem.graph.graph_memory import live_bytes, storage

PART = {"kernel": "attention"}
GRAPH = ComputationGraph.from_ops(
    "attention",
    [
        {"name": "q", "type": "aten.mm", "outputs": [10], "flops": 1.0, "bytes_accessed": 30.0},
        {"name": "k", "type": "aten.mm", "outputs": [20], "flops": 1.0, "bytes_accessed": 30.0},
        {"name": "scaled", "type": "aten.mul", "inputs": [["q", 0]], "outputs": [40], "bytes_accessed": 50.0, **PART},
        {"name": "scores", "type": "aten.bmm", "inputs": [["scaled", 0], ["k", 0]], "outputs": [800], "flops": 100.0,
         "bytes_accessed": 860.0, **PART},
        {"name": "dropped", "type": "aten.mul", "inputs": [["scores", 0]], "outputs": [800], "bytes_accessed": 1600.0,
         **PART},
        {"name": "out", "type": "aten.bmm", "inputs": [["dropped", 0], ["k", 0]], "outputs": [7], "flops": 100.0,
         "bytes_accessed": 827.0, **PART},
        {"name": "loss", "type": "aten.sum", "inputs": [["out", 0]], "outputs": [4], "bytes_accessed": 11.0},
        {"name": "back", "type": "aten.bmm", "inputs": [["loss", 0], ["dropped", 0], ["scaled", 0]], "outputs": [5],
         "flops": 100.0, "bytes_accessed": 849.0, "pass": "backward", **PART},
        {"name": "end", "type": "aten.sum", "inputs": [["back", 0]], "outputs": [4], "bytes_accessed": 9.0},
    ],
)  # fmt: skip


def test_only_the_last_product_of_each_pass_has_work() -> None:
    flops, accessed = work_on_gpus(GRAPH)
    assert flops.tolist() == [1, 1, 0, 0, 0, 200, 0, 125, 0]
    assert accessed.tolist() == [30, 30, 0, 0, 0, 10 + 20 + 7, 11, 4 + 10 + 5, 9]


def test_scores_take_no_memory_and_copies_stand_for_what_they_copy() -> None:
    hidden, source = inside(GRAPH)
    assert np.flatnonzero(hidden).tolist() == [2, 3, 4]
    assert source.tolist() == [0, 1, 0, 3, 3, 5, 6, 7, 8]
    assert live_bytes(GRAPH, on_cpus=False).tolist() == [10, 20, 10, 0, 0, 7, 4, 5, 4]
    assert live_bytes(GRAPH, on_cpus=True).tolist() == [10, 20, 40, 800, 800, 7, 4, 5, 4]
    assert storage(GRAPH, on_cpus=False).tolist() == [0, 1, 0, 3, 3, 5, 6, 7, 8]
    assert storage(GRAPH).tolist() == list(range(9))
