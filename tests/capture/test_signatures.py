"""Signatures: what decides an op's time is in them, and nothing else."""

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from placeto.capture.trace import capture_inference, capture_training
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from tests.captures import called, meta, mlp, record


def last(function: object, *inputs: Tensor) -> str:
    """Signature of the last op of what a function does."""
    return capture_inference(called(function), inputs).signatures[-1]


def test_shapes_strides_dtypes_and_arguments_are_told_apart() -> None:
    functions = [
        (lambda x: x.sum(0), meta(4, 8)),
        (lambda x: x.sum(1), meta(4, 8)),
        (lambda x: x.sum(0), meta(8, 4)),
        (lambda x: x.sum(0), meta(8, 4).t()),
        (lambda x: x.sum(0), meta(4, 8).to(torch.bfloat16)),
        (lambda x: x.pow(2.0), meta(4, 8)),
        (lambda x: x.pow(3.5), meta(4, 8)),
    ]
    assert len({last(*each) for each in functions}) == len(functions)
    assert last(*functions[0]) == "aten.sum.dim_IntList(f32[4,8],[0])"
    assert last(*functions[3]) == "aten.sum.dim_IntList(f32[4,8]/[1,4],[0])"
    assert last(*functions[4]).startswith("aten.sum.dim_IntList(bf16[4,8]")


def test_the_device_is_not_part_of_it_and_lists_of_one_kind_are_short() -> None:
    assert last(lambda x: x.to(torch.float64), meta(2)) == "aten._to_copy.default(f32[2],dtype=torch.float64)"
    assert "cpu" not in last(lambda x: x + torch.rand_like(x), meta(2))
    assert last(lambda *x: torch.cat(x), *[meta(2, 3)] * 5) == "aten.cat.default([5*f32[2,3]])"
    assert last(lambda x, y: torch.cat([x, y, x]), meta(2, 3), meta(1, 3)).endswith("([f32[2,3],f32[1,3],f32[2,3]])")


def test_ops_have_signatures_and_parameters_none() -> None:
    graph = capture_training(mlp(), [meta(2, 8)], lambda y: y.sum())
    for op_type, signature in zip(graph.op_types, graph.signatures, strict=True):
        assert signature.startswith("" if op_type == "parameter" else f"{op_type}.")
        assert (signature == "") == (op_type == "parameter")
    assert "signature" not in record(graph, "0.weight")


def test_the_hash_of_a_problem_sees_them() -> None:
    graph = capture_training(mlp(), [meta(2, 8)], lambda y: y.sum())
    without = replace(graph, signatures=None)  # type: ignore[arg-type]
    assert set(without.signatures) == {""}
    cluster = load_cluster("2xv100")
    assert PlacementProblem(graph, cluster).hash != PlacementProblem(without, cluster).hash


def test_attention_has_one_signature_however_it_was_traced() -> None:
    """In a trace of two passes, a mask that isn't there was left out, and in a trace of one it was None."""
    layer = nn.Linear(8, 24)

    def attended(x: Tensor, change: bool) -> Tensor:
        q, k, v = layer(x).view(2, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        w = torch.zeros(2)
        if change:
            w[0].add_(1)
        return y.sum() + w.sum()

    found = []
    for change in (False, True):
        module = called(partial(attended, change=change))
        module.layer = layer
        signatures = capture_training(module, [torch.randn(2, 6, 8)]).signatures
        found.append([one for one in signatures if "attention" in one and "backward" in one])
    assert found[0] == found[1]
    assert len(found[0]) == 1
