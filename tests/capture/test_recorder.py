"""What the recorder writes down, and what it doesn't take."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placeto.capture import capture_training, step_tracer, trace_inference
from placeto.capture.tracing.node_labels import Label, Labels
from placeto.capture.tracing.recorder import functional, mutates, record
from placeto.errors import CaptureError
from placeto.problem.step.micro_batches import NO_CALL
from tests.captures import Made


def targets(traced: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]


def test_ops_and_layouts_of_what_they_make() -> None:
    x = torch.ones(3, 4)
    traced = record(lambda x, unused: [x.t().chunk(2)[1], None], [x, 7], Labels())
    assert targets(traced) == ["aten.t.default", "aten.split.Tensor", *["<built-in function getitem>"] * 2]
    assert [node.op for node in traced.graph.nodes][:2] == ["placeholder", "placeholder"]
    value = traced.graph.find_nodes(op="output")[0].args[0][0].meta["val"]
    assert (value.shape, value.stride(), value.storage_offset()) == ((2, 3), (1, 4), 2)
    assert (value.device.type, value.untyped_storage().nbytes()) == ("meta", 48)
    (result, none) = traced(x, 7)
    assert none is None
    assert torch.equal(result, torch.ones(2, 3))


def test_labels_follow_modules_and_calls() -> None:
    labels, seen = Labels(), []
    with labels.within("a", 0):
        seen.append(labels.next([]))
        with labels.within("a.b", 3):
            seen.append(labels.next([]))
        with labels.backward():
            seen.append(labels.next([]))
    with labels.backward():
        seen += [labels.next([Label("x"), Label("y", 1)]), labels.next([])]
    expected = [("a", 0, False), ("a.b", 3, False), ("a", 0, True, True), ("y", 1, True), ("", NO_CALL, True)]
    assert seen == [Label(*label) for label in expected]


def test_mutations_become_new_tensors() -> None:
    def change(x: Tensor) -> list[Tensor]:
        y = x * 2
        y[0].add_(1)
        return [y + x]

    x = torch.ones(2, 2)
    traced = record(change, [x], Labels())
    assert mutates(traced)
    pure = functional(traced, [x])
    assert not mutates(pure)
    assert torch.equal(pure(x)[0], change(x)[0])


def changing(self: Any, x: Tensor) -> Tensor:
    """Changes what it has made, and a buffer, in place."""
    self.calls += 1
    y = self.layer(x).sin()
    self.change(y)
    return y * 2


@pytest.mark.parametrize(
    ("change", "passes"),
    [
        (lambda y: y.relu_(), 1),
        (lambda y: y.mul_(3).add_(1), 1),
        (lambda y: y.clamp_(min=0.1), 1),
        (lambda y: y.add_(y.cos()), 2),  # by a tensor, whose dtype and shape would count
        (lambda y: y[0].add_(1), 2),  # a part
        (lambda y: (y.t(), y.add_(1)), 2),  # which another tensor shows
        (lambda y: y.detach().mul_(2), 2),
    ],
)
def test_what_is_changed_in_place_and_nobody_else_shows_takes_one_pass(
    change: Callable[[Tensor], object], passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter of calls is written back in the end, in either case."""
    seconds = []
    monkeypatch.setattr(step_tracer, "functional", lambda *given: seconds.append(given) or functional(*given))
    module, x = Made(changing, layer=nn.Linear(4, 4), change=change), torch.randn(3, 4)
    module.register_buffer("calls", torch.zeros((), dtype=torch.long))
    traced = trace_inference(module, [x]).traced
    assert 1 + len(seconds) == passes
    assert not any(target.removesuffix(".default").endswith("_") for target in targets(traced)[:-1])
    calls = torch.tensor(4)
    (made,) = traced(module.layer.weight, module.layer.bias, calls, x)
    assert torch.equal(made, module(x))
    assert calls == 5
    last = [*traced.graph.nodes][-2]
    assert str(last.target) == "aten.copy_.default"
    assert [str(node.target) for node in last.args] == ["input_2", "aten.add.Tensor"]


def test_ops_that_change_nothing_are_written_down_as_they_are() -> None:
    """One of them, ``frexp``, is pointwise and makes two tensors."""
    traced = record(lambda x: [x.relu(), *torch.frexp(x)], [torch.ones(2)], Labels())
    assert targets(traced) == ["aten.relu.default", "aten.frexp.Tensor", *["<built-in function getitem>"] * 2]


def test_inputs_that_share_memory_are_told_apart_by_the_second_pass() -> None:
    x = torch.ones(4)
    traced = record(lambda x, y: [x.add_(1) * 1, y * 1], [x, x[:2]], Labels())
    assert mutates(traced)
    assert not mutates(record(lambda x, y: [x.add_(1) * 1, y * 1], [x, torch.ones(2)], Labels()))


def test_constants_of_the_module_are_kept() -> None:
    def scaled(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) * self.scale + torch.tensor(1.0)
        return y if torch.tensor(True) else y * torch.tensor(2.0).item()

    module, x = Made(scaled, layer=nn.Linear(2, 2), scale=torch.tensor([2.0, 3.0])), torch.randn(3, 2)
    traced = trace_inference(module, [x]).traced
    (made,) = traced(module.layer.weight, module.layer.bias, x)
    assert torch.equal(made, module(x))


def branch(y: Tensor) -> Tensor:
    return torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,))


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (branch, "; what torch.cond, .* can't be captured"),
        (lambda y: torch.sparse.mm(torch.eye(4).to_sparse(), y.t()), "; sparse and nested tensors can't be captured"),
    ],
)
def test_what_it_does_not_take(compute: Callable[[Tensor], Tensor], message: str) -> None:
    module = Made(lambda self, x: compute(self.layer(x)), layer=nn.Linear(4, 4))
    with pytest.raises(CaptureError, match=rf"^Made: .*test_recorder.py:\d+: .*{message}"):
        capture_training(module, [torch.ones(4, 4)], lambda y: y.sum())
