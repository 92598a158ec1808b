"""Attention with dropout, which a CPU writes out, takes the time and memory of one kernel on GPUs."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from placeto import Cluster, ComputationGraph, PlacementProblem, Schedule, capture_training, simulate
from placeto.problem.cluster.boards import CPU, H100
from tests.captures import Made

BATCH, HEADS, LENGTH, WIDTH = 8, 8, 512, 64
SCORES = BATCH * HEADS * LENGTH * LENGTH
Attention = Callable[..., Tensor]


def step(attention: Attention, dtype: torch.dtype = torch.bfloat16, **how: Any) -> ComputationGraph:
    """The training step of two linear layers around an attention of heads (B, H, L, W)."""

    def compute(module: Any, x: Tensor) -> Tensor:
        parts = [part.view(-1, LENGTH, HEADS, WIDTH).transpose(1, 2) for part in module.into(x).chunk(3, -1)]
        return module.out(attention(*parts).transpose(1, 2).reshape(x.shape))

    with torch.device("meta"):
        layers = {"into": nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH), "out": nn.Linear(HEADS * WIDTH, HEADS * WIDTH)}
        module, x = Made(compute, **layers).to(dtype), torch.empty(BATCH, LENGTH, HEADS * WIDTH, dtype=dtype)
    return capture_training(module, [x], lambda y: y.float().square().sum(), **how)


def alone(graph: ComputationGraph, device: Any = H100) -> Schedule:
    cluster = Cluster("alone", (device,), np.ones((1, 1)), np.zeros((1, 1)))
    return simulate(PlacementProblem(graph, cluster), np.zeros(graph.num_ops, int))


def with_dropout(rate: float, **how: Any) -> Attention:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=rate, **how)


def masked(rate: float) -> Attention:
    return lambda q, k, v: with_dropout(rate, attn_mask=torch.zeros(LENGTH, LENGTH, dtype=q.dtype))(q, k, v)


def recomputed(rate: float) -> Attention:
    return lambda q, k, v: checkpoint(with_dropout(rate), q, k, v, use_reentrant=False)


WAYS: Mapping[str, tuple[Callable[[float], Attention], dict[str, Any]]] = {
    "bfloat16": (with_dropout, {}),
    "float32": (with_dropout, {"dtype": torch.float32}),
    "autocast": (with_dropout, {"dtype": torch.float32, "precision": "bf16"}),
    "causal": (lambda rate: with_dropout(rate, is_causal=True), {}),
    "masked": (masked, {}),
    "micro-batches": (with_dropout, {"micro_batches": 2}),
    "in a checkpoint": (recomputed, {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_attention_with_dropout_costs_what_it_costs_without(way: str) -> None:
    make, how = WAYS[way]
    graph, plain = (step(make(rate), **how) for rate in (0.1, 0.0))
    schedule, expected = alone(graph), alone(plain)
    assert schedule.makespan_us == pytest.approx(expected.makespan_us, rel=0.2)  # a copy more, and a small model
    assert schedule.peak_memory[0] == pytest.approx(expected.peak_memory[0], rel=0.15)
    assert schedule.makespan_us < 0.8 * written_out(graph).makespan_us
    assert graph.flops.sum() < plain.flops.sum()  # the graph's numbers are those of the CPU


def written_out(graph: ComputationGraph) -> Schedule:
    plain = [record | {"kernel": ""} for record in graph.to_ops()]
    return alone(ComputationGraph.from_ops("plain", plain, graph.mode))


def test_a_cpu_keeps_the_scores() -> None:
    graph = step(with_dropout(0.1), torch.float32)
    kept = [alone(graph, device).peak_memory[0] for device in (CPU, H100)]
    assert kept[0] - kept[1] >= 3 * 4 * SCORES


@pytest.mark.parametrize(
    "attention",
    [
        lambda q, k, v: F.dropout((q @ k.transpose(-1, -2) / 8).softmax(-1), 0.1) @ v,
        lambda q, k, v: with_dropout(0.1)(*(x.flatten(0, 1) for x in (q, k, v))).view(q.shape),
        lambda q, k, v: with_dropout(0.1)(q.double(), k.double(), v.double()).to(q.dtype),
        with_dropout(0.0),
    ],
    ids=["written by the module", "three dimensions", "float64", "no dropout"],
)
def test_what_gpus_write_out_too_has_no_label(attention: Attention) -> None:
    assert "attention" not in step(attention).kernels


def test_layers_of_torch_with_their_dropout() -> None:
    kernels = []
    for rate in (0.1, 0.0):
        layer = nn.TransformerDecoderLayer(64, 4, 128, rate, batch_first=True)
        graph = capture_training(
            Made(lambda self, x: self.layer(x, x), layer=layer), [torch.ones(2, 8, 64)], Tensor.sum
        )
        kernels.append([graph.op_types[op] for op, kernel in enumerate(graph.kernels) if kernel == "attention"])
    assert kernels[0].count("aten.bmm") == 2 * 6
    assert "aten._softmax_backward_data" in kernels[0]
    assert kernels[1] == []
