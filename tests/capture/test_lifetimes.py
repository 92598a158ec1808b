"""How long eager execution keeps tensors, as a captured graph says it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_inference, capture_training
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


def test_a_node_of_autograd_holds_what_it_saved_until_its_last_op() -> None:
    """Of a product, both factors, although the first gradient reads one of them alone."""
    both = Made(lambda self, x: (self.a(x) * self.b(x)).sum(), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    graph = capture_training(both.to("meta"), [meta(2, 4)])
    gradients = [name for name in graph.op_names if "grad/mul" in name]
    assert len(gradients) == 2
    assert [last for last in held(graph).values() if last in gradients] == gradients[1:], "the other is read last"


def test_a_norm_that_changes_statistics_holds_what_one_without_them_does() -> None:
    """Its op is another one in a functional trace: it returns the statistics as well."""
    norms = (nn.InstanceNorm1d(4, track_running_stats=kept) for kept in (False, True))
    models = (Made(lambda self, x: self.norm(self.layer(x)).pow(2).sum(), layer=nn.Conv1d(4, 4, 1), norm=norm)
              for norm in norms)  # fmt: skip
    without, kept = (held(capture_training(model.to("meta"), [meta(2, 4, 3)])) for model in models)
    assert without["norm/native_batch_norm"] == kept["norm/_native_batch_norm_legit_functional"] == "grad/mul_1"


@pytest.mark.parametrize("kept", [lambda y: y, lambda y: y.detach().clone(), lambda y: {"all": [y.exp()]}])
def test_what_a_module_keeps_is_held_to_the_end(kept: Any) -> None:
    def keep(self: Any, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.last = kept(y)
        return y.tanh().sum()

    graph = capture_training(Made(keep, layer=nn.Linear(4, 4)).to("meta"), [meta(2, 4)])
    assert graph.op_names[-1] in held(graph).values()
    assert not graph.held_until[graph.output_ptr[graph.index["sum"]]] >= 0, "but for the loss"


def test_an_inference_keeps_what_it_returns() -> None:
    both = Made(lambda self, x: (self.a(x), self.b(self.a(x).exp()).exp()), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    graph = capture_inference(both.to("meta"), [meta(2, 4)])
    assert held(graph) == {"a/addmm": "exp_1"}


@pytest.mark.parametrize(("run_by", "last"), [(range(4), 2), ([None] * 4, 3)], ids=["backward pass", "no gradients"])
def test_a_gradient_holds_a_tensor_only_until_what_depends_on_its_last_use(run_by: Any, last: int) -> None:
    """Else a schedule that runs another branch late would keep it; without gradients, branches run one by one."""
    records: list[dict[str, Any]] = [
        {"name": "a", "flops": 1, "inputs": []},
        {"name": "b", "flops": 1, "inputs": [(0, 0)]},
        {"name": "c", "flops": 1, "inputs": [(1, 0)]},
        {"name": "other", "flops": 1, "inputs": [(0, 1)]},
    ]
    made = [one | {"outputs": [4, 4]} for one in records]
    hold(made, {(0, 0): 3, (0, 1): 3, (1, 0): 2, (1, 1): 3}, run_by, {})
    assert made[0]["held"] == [(last, 0)]
    assert made[1]["held"] == [(last, 1)], "read by none, it is there until its own op ends, or longer"
