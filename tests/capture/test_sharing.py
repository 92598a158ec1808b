"""Graphs know which modules need tensors of others themselves, and which are called in others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_inference, capture_training
from placeto.problem.graph import ComputationGraph
from tests.captures import Made
from tests.parts import through

X = torch.randn(2, 5, 8)
Forward = Callable[..., Any]


def layer() -> nn.Module:
    return nn.Linear(8, 8)


def needs(graph: ComputationGraph) -> dict[str, tuple[str, ...]]:
    """Module -> the modules whose tensors it needs themselves."""
    return {path: names for path, names in zip(graph.modules, graph.shared_with, strict=True) if names}


def callers(graph: ComputationGraph) -> dict[str, tuple[str, ...]]:
    """Module -> the modules that call it, but aren't around it."""
    return {path: names for path, names in zip(graph.modules, graph.called_in, strict=True) if names}


def model(second: Forward, forward: Forward) -> nn.Module:
    """A model of a layer and a module that computes this."""
    return Made(forward, first=layer(), second=Made(second, inner=layer()))


def reads_again(m: Any, x: Tensor) -> Tensor:
    x = m.first(x)
    return m.second(x).mean() + x  # type: ignore[no-any-return]


def zeroes(m: Any, x: Tensor) -> Tensor:
    y = m.inner(x)
    x.zero_()
    return y  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("second", "forward", "others"),
    [
        (lambda m, x: m.inner(x.relu_()), reads_again, ("first",)),
        (lambda m, x: m.inner(x[:, 1:].relu_()), reads_again, ("first",)),
        (zeroes, reads_again, ("first",)),  # an op that isn't in the graph
        (lambda m, x: m.inner(torch.add(x.detach(), 1, out=x.detach())), reads_again, ("first",)),
        (lambda m, x: m.inner(x).add_(x).relu_(), reads_again, ()),  # it has made what it changes
        (lambda m, x: m.inner(x.relu_()), lambda m, x: [x := m.first(x), m.second(x)], ("first",)),  # the user reads it
    ],
)
def test_modules_that_change_an_argument_in_place(second: Forward, forward: Forward, others: tuple[str, ...]) -> None:
    found = needs(capture_inference(model(second, forward), [X]))
    assert {names for path, names in found.items() if path.startswith("second")} == ({others} if others else set())


def test_what_nobody_else_reads_may_be_changed() -> None:
    blocks = nn.ModuleList(Made(lambda m, x: m.inner(x.relu_()), inner=layer()) for _ in range(3))
    chain = Made(lambda m, x: through(m.blocks, m.first(x)), first=layer(), blocks=blocks)
    assert needs(capture_inference(chain, [X])) == {}
    norm, act = nn.BatchNorm1d(5), nn.ReLU(inplace=True)
    convolved = Made(lambda m, x: m.act(m.norm(m.inner(x))) + x, inner=layer(), norm=norm, act=act)
    blocks = nn.Sequential(convolved, layer())
    assert needs(capture_inference(blocks, [X])) == needs(capture_training(blocks, [X], lambda y: y.sum())) == {}


def test_who_made_a_tensor() -> None:
    """A module, the model itself, or its inputs; a tensor of zeros may be on the device of what was there before."""

    def write(m: Any, y: Tensor, into: Tensor) -> Tensor:
        return into.add_(m.inner(y).mean())

    def forward(make: Callable[[Any, Tensor, Tensor], Tensor]) -> Forward:
        def compute(m: Any, x: Tensor) -> Tensor:
            y = m.first(x)
            into = make(m, x, y)
            return m.second(y, into) + into  # type: ignore[no-any-return]

        return compute

    cases: list[tuple[Any, tuple[str, ...]]] = [
        (lambda m, x, y: x, ("",)),
        (lambda m, x, y: x.new_zeros(3), ("",)),
        (lambda m, x, y: y.new_zeros(3), ("first",)),
        (lambda m, x, y: y * 2, ("first",)),
        (lambda m, x, y: torch.zeros(3, device=y.device), ("", "first")),
    ]
    for make, others in cases:
        assert needs(capture_inference(model(write, forward(make)), [X]))["second"] == others


def test_tensors_that_are_no_arguments() -> None:
    def kept_back(m: Any, x: Tensor) -> Tensor:
        m.second.mask = m.first(x)
        return m.second(x)  # type: ignore[no-any-return]

    assert needs(capture_inference(model(lambda m, x: m.inner(x) * m.mask, kept_back), [X])) == {"second": ("first",)}
    hooked = nn.Sequential(layer(), layer())
    hooked[1].register_forward_hook(lambda m, arguments, output: output + arguments[0])
    assert needs(capture_inference(hooked, [X])) == {"1": ("0",)}
    named = model(lambda m, x, masks: m.inner(x) * masks["a"][0], lambda m, x: m.second(x, masks={"a": [m.first(x)]}))
    assert needs(capture_inference(named, [X])) == {}


def test_a_tensor_from_before_the_step_is_on_one_device() -> None:
    """What a step has kept for the next ones, such as a table, but no number, and not what a module is given."""
    table, number = torch.rand(8), torch.tensor(2.0)

    def reads(m: Any, x: Tensor) -> Tensor:
        return m.inner(x) * table  # type: ignore[no-any-return]

    def both(m: Any, x: Tensor) -> Tensor:
        return m.second(m.first(x) * table)  # type: ignore[no-any-return]

    def given(m: Any, x: Tensor) -> Tensor:
        return m.third(m.second(m.first(x), table), table)  # type: ignore[no-any-return]

    takes = Made(lambda m, x, by: m.inner(x) * by, inner=layer())
    cases: list[tuple[nn.Module, dict[str, tuple[str, ...]]]] = [
        (nn.Sequential(Made(reads, inner=layer()), layer(), Made(reads, inner=layer())), {"2": ("0",)}),
        (model(reads, both), {"second": ("",)}),
        (model(reads, lambda m, x: m.second(m.first(x)) + table), {"second": ("",)}),
        (model(lambda m, x: m.inner(x) * number, lambda m, x: m.second(m.first(x) * number)), {}),
        (Made(given, first=layer(), second=takes, third=Made(takes.compute, inner=layer())), {}),
    ]
    for module, found in cases:
        assert needs(capture_inference(module, [X])) == found


def test_modules_that_are_given_a_list_or_a_mapping_that_is_changed() -> None:
    """Where others see it: of what is returned, and of what nobody reads later, a copy may be changed."""

    def writes(m: Any, x: Tensor, notes: Any) -> Any:
        notes["x"] = m.inner(x)
        return notes

    def appends(m: Any, x: Tensor, left: Any) -> Any:
        left[0].append(m.inner(x))
        return x

    def pops(m: Any, x: Tensor, left: Any) -> Any:
        return m.inner(x) + left.pop()

    def counts(m: Any, x: Tensor, calls: Any) -> Any:
        calls["n"] += 1
        return m.inner(x) * calls["n"]

    class Holder:
        """An object that tools know how to move, into a new one."""

        def __init__(self, x: Tensor) -> None:
            self.x = x

        def to(self, device: Any) -> "Holder":
            return Holder(self.x.to(device))

    def holds(m: Any, x: Tensor, holder: Any) -> Any:
        holder.x = m.inner(x)
        return x

    def keeps(m: Any, x: Tensor, given: Any) -> Any:
        m.kept = given
        return m.inner(x)

    def late(m: Any, x: Tensor) -> Tensor:
        x = m.second(m.first(x), given := [])
        given.append(x * 2)
        return m.second.__dict__.pop("kept")[0]  # type: ignore[no-any-return]

    def case(second: Forward, make: Forward, read: Forward) -> nn.Module:
        def compute(m: Any, x: Tensor) -> Any:
            given = make(x)
            return read(m.second(m.first(x), given), given)

        return model(second, compute)

    lost = [
        case(writes, lambda x: {}, lambda y, given: given["x"]),
        case(appends, lambda x: ([],), lambda y, given: given[0][0]),
        case(pops, lambda x: [x, x * 2], lambda y, given: given[-1] + y),
        case(counts, lambda x: {"n": 0}, lambda y, given: y * given["n"]),
        case(holds, Holder, lambda y, given: given.x),
        model(keeps, late),
        case(lambda m, x, given: (m.inner(x), given), lambda x: [x], lambda y, given: y[0] * (y[1] is given)),
    ]
    kept = [
        case(writes, lambda x: {}, lambda y, given: y["x"]),
        case(pops, lambda x: [x, x * 2], lambda y, given: y),
        case(lambda m, x, given: m.inner(x) + given["x"][0], lambda x: {"x": [x]}, lambda y, given: y + given["x"][0]),
    ]
    trained = capture_training(lost[0], [X], lambda y: y.sum())
    for graph in (trained, *(capture_inference(module, [X]) for module in lost)):
        ((path, names),) = needs(graph).items()
        assert path.startswith("second")
        assert path in names
    for module in kept:
        assert needs(capture_inference(module, [X])) == {}


def test_modules_that_are_called_in_others() -> None:
    far, act = layer(), nn.GELU()
    block = Made(lambda m, x: m.inner(through(m.kept, x)), inner=layer(), kept=[far, act])
    calls = {"far": ("block",), "act": ("block",)}
    graph = capture_inference(Made(lambda m, x: m.block(x), block=block, far=far, act=act), [X])
    assert callers(graph) == calls
    deep = Made(lambda m, x: m.block.inner(x), block=block)
    assert callers(capture_inference(deep, [X])) == {}
    parts = nn.ModuleList(Made(lambda m, x: m.act(m.inner(x)), inner=layer(), act=act) for _ in range(2))
    graph = capture_inference(Made(lambda m, x: through(m.parts, x), parts=parts), [X])
    assert callers(graph) == {}
    assert {"parts.0.act", "parts.1.act"} <= set(graph.modules), "a part of each, though it is one module"


def test_micro_batches_have_the_callers_of_the_whole_batch() -> None:
    far = layer()
    block = Made(lambda m, x: m.inner(m.kept[0](x.relu_())), inner=layer(), kept=[far])
    net = Made(lambda m, x: m.block(m.far(x)) + x, far=far, block=block)
    for micro_batches in (1, 2):
        assert callers(capture_inference(net, [X], micro_batches=micro_batches)) == {"far": ("block",)}
