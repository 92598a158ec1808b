"""How long eager execution keeps tensors, as a captured graph says it."""

from typing import Any

import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_training
from placeto.capture.tracing.lifetimes import hold
from placeto.problem.graph import ComputationGraph
from tests.captures import Made, meta


def held(graph: ComputationGraph) -> dict[str, str]:
    """Until the end of which op the outputs of ops are held."""
    return {op["name"]: last for op in graph.to_ops() for last, _ in op.get("held", ())}


def rest(y: Tensor) -> Tensor:
    """Needs its sine only in the middle."""
    z = y.sin()
    return z.neg().sum()


def caller() -> nn.Module:
    return Made(lambda self, x: rest(self.layer(x)) * 3, layer=nn.Linear(4, 4, bias=False))


def gates(self: Any, x: Tensor) -> Tensor:
    """Changes both halves of a tensor in place, as recurrent layers do, and saves one of them."""
    one, other = torch.unsafe_chunk(self.layer(x), 2, 1)
    one.sigmoid_()
    other.mul_(2)
    return (one + other.neg()).sum()


def test_a_variable_is_held_until_its_function_has_returned() -> None:
    graph = capture_training(caller().to("meta"), [meta(2, 4)])
    # the sine is needed until it is negated, and is there until the sum is
    assert held(graph)["sin"] == "sum"


def test_half_of_a_tensor_is_held_with_the_other() -> None:
    graph = capture_training(Made(gates, layer=nn.Linear(4, 4, bias=False)).to("meta"), [meta(2, 4)])
    assert held(graph)["mul"] == "grad/sigmoid_backward"
    assert "sigmoid" not in held(graph)


def test_micro_batches_hold_alike() -> None:
    graph = capture_training(caller().to("meta"), [meta(8, 4)], micro_batches=4)
    of = {graph.op_names[op]: int(graph.micro_batches[op]) for op in range(graph.num_ops)}
    pairs = [(of[name], of[last]) for name, last in held(graph).items() if "sin" in name]
    assert pairs == [(number, number) for number in range(4)]


def test_a_tensor_is_held_only_until_what_depends_on_its_last_use() -> None:
    """Else a schedule that runs another branch late would keep it."""
    records: list[dict[str, Any]] = [
        {"name": "a", "flops": 1, "inputs": []},
        {"name": "b", "flops": 1, "inputs": [(0, 0)]},
        {"name": "c", "flops": 1, "inputs": [(1, 0)]},
        {"name": "other", "flops": 1, "inputs": [(0, 1)]},
    ]
    made = [one | {"outputs": [4, 4]} for one in records]
    hold(made, {(0, 0): 3, (0, 1): 3, (1, 0): 2, (1, 1): 3}, [None] * 4)
    assert made[0]["held"] == [(2, 0)]
    assert made[1]["held"] == [(2, 1)], "read by none, it is there until its own op ends, or longer"
