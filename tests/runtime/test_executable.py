"""Placed steps against eager execution, to the bit."""

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placeto.capture.inputs.arguments import input_leaves
from placeto.capture.trace import trace_inference, trace_training
from placeto.errors import RunError
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.runtime.executable import PlacedModule
from placeto.runtime.local_devices import LocalDevice, open_devices
from placeto.runtime.placed import PlacedStep
from placeto.runtime.program import Program
from placeto.simulator.schedule import simulate
from tests.captures import Made, assert_same_gradients
from tests.runtime.true import assert_next_step, placed


@pytest.fixture(autouse=True)
def _mkldnn_as_before() -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled()
    yield
    torch._C._set_mkldnn_enabled(before)


def tied() -> nn.Module:
    parts = {"words": nn.Embedding(11, 8), "out": nn.Linear(8, 11, bias=False), "frozen": nn.Linear(8, 8)}
    parts["out"].weight = parts["words"].weight
    parts["frozen"].requires_grad_(False)
    return Made(lambda self, x: self.out(self.frozen(self.words(x)).relu()), **parts)


def recurrent() -> nn.Module:
    lstm = nn.LSTM(4, 6, 2, batch_first=True)
    return Made(lambda self, x: self.out(self.lstm(x)[0]), lstm=lstm, out=nn.Linear(6, 3))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 3)
    )


def attention() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


CASES: dict[str, tuple[Any, Any]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)), lambda: torch.randn(5, 8)),
    "conv": (conv, lambda: torch.randn(2, 3, 8, 8)),
    "lstm": (recurrent, lambda: torch.randn(2, 3, 4)),
    "attention": (attention, lambda: torch.randn(2, 5, 8)),
    "tied": (tied, lambda: torch.randint(11, (2, 5))),
}


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, -2), target)


@pytest.mark.parametrize("case", CASES)
def test_loss_gradients_and_buffers_are_those_of_eager_execution(case: str, devices: list[LocalDevice]) -> None:
    make, data = CASES[case]
    if case == "lstm":
        torch._C._set_mkldnn_enabled(False)
    for seed in range(2):
        torch.manual_seed(seed)
        module, x = make(), data()
        twin = make()
        twin.load_state_dict(module.state_dict())
        target = torch.randint(3, tuple(twin(x).flatten(0, -2).shape[:1]))
        twin.load_state_dict(module.state_dict())
        step = placed(trace_training(module, [x], loss_of, targets=[target]), [x], seed, devices, [target])
        assert step.step.crossing > 2, "nothing crosses"
        for _ in range(2):  # gradients are added
            assert_next_step(step, module, twin, x, target, loss=loss_of)
        for (name, ours), theirs in zip(module.named_buffers(), twin.buffers(), strict=True):
            assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("case", ["conv", "attention"])
def test_tensors_may_lie_in_memory_in_another_way_than_at_the_capture(case: str, devices: list[LocalDevice]) -> None:
    """As images whose channels were moved to the front: eager PyTorch copies them where it can't view them."""
    make, data = CASES[case]
    module, x = make(), data()
    target = torch.randint(3, tuple(module(x).flatten(0, -2).shape[:1]))
    step = placed(trace_training(module, [x], loss_of, targets=[target]), [x], 0, devices, [target])
    x, twin = torch.randn_like(x).movedim(1, -1).contiguous().movedim(-1, 1), copy.deepcopy(module)
    assert_next_step(step, module, twin, x, target, loss=loss_of, rtol=1.3e-6, atol=1e-5)


def test_tensors_of_no_elements_go_from_core_to_core(devices: list[LocalDevice]) -> None:
    for rows in (0, 5, 7):
        one, other = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        module = Made(lambda self, x: torch.cat([self.one(x[:5]), self.other(x[5:])]), one=one, other=other)
        x = torch.randn(rows, 8)
        for seed in range(2):
            step = placed(trace_training(module, [x], torch.sum), [x], seed, devices)
            module.zero_grad()
            assert_next_step(step, module, copy.deepcopy(module), x, loss=torch.sum)


class Noise(nn.Module):
    """Ops that make random tensors; torch's other overloads of them take a generator."""

    def forward(self, x: Tensor) -> Tensor:
        shuffled = x[torch.randperm(len(x))] + torch.randn_like(x) + torch.rand(8)
        return shuffled * torch.randint(1, 9, (8,)) + torch.rand_like(x) * torch.randint_like(x, 9)


@pytest.mark.parametrize("drawn", [nn.Dropout, Noise])
def test_random_numbers_are_those_of_the_seed(drawn: type[nn.Module], devices: list[LocalDevice]) -> None:
    """Of torch's own generator where one core draws; where two do, the same for the same seed and placement."""
    module = nn.Sequential(nn.Linear(8, 8), drawn(), nn.Linear(8, 8), drawn(), nn.Linear(8, 1))
    x = torch.randn(5, 8)
    capture = trace_training(module, [x], lambda y: y.square().mean())
    ops = capture.graph.num_ops
    second = np.array([int(name.startswith("3")) for name in capture.graph.op_names])  # draws on the other core
    for placement in (np.zeros(ops, np.int64), second):
        step = placed(capture, [x], placement, devices, order=np.arange(ops))
        losses = []
        for seed in (0, 1, 0):
            torch.manual_seed(seed)
            losses.append([step(x).item() for _ in range(3)])
        torch.manual_seed(0)
        eager = [module(x).square().mean().item() for _ in range(3)]
        assert losses[0] == losses[2]
        assert len({*losses[0], *losses[1]}) == 6
        assert (losses[0] == eager) == (not step.step.generators) == (not placement.any())


def test_a_core_that_only_receives_what_is_drawn_draws_nothing(devices: list[LocalDevice]) -> None:
    def drawn(self: Any, x: Tensor) -> Tensor:
        y = self.before(x)
        return self.behind(y * torch.empty_like(y).uniform_())

    module, x = Made(drawn, before=nn.Linear(8, 8), behind=nn.Linear(8, 8)), torch.ones(2, 8)
    capture = trace_inference(module, [x])
    step = placed(capture, [x], [int("mul" in name) for name in capture.graph.op_names], devices)
    assert step.step.crossing, "nothing crosses"
    for seed in range(2):
        torch.manual_seed(seed)
        made = step(x)
        torch.manual_seed(seed)
        with torch.no_grad():
            assert torch.equal(made, module(x))


def test_what_several_cores_read_is_drawn_once(devices: list[LocalDevice]) -> None:
    # its backward pass reads the random numbers of the forward pass
    module = Made(lambda self, x: x + torch.tanh(self.layer(x) * torch.rand(5, 1)), layer=nn.Linear(8, 8))
    x = torch.randn(5, 8)
    capture = trace_training(module, [x], lambda y: y.square().mean())
    placement = [int("grad" in name) for name in capture.graph.op_names]
    assert len(set(placement)) == 2
    assert_next_step(placed(capture, [x], placement, devices), module, copy.deepcopy(module), x)


def test_inference_returns_what_the_module_returns(devices: list[LocalDevice]) -> None:
    module = Made(
        lambda self, x, scale: {"a": self.a(x) * scale, "both": [self.b(x).relu(), x], "n": 7},
        a=nn.Linear(4, 3),
        b=nn.Linear(4, 2),
    ).eval()
    inputs = {"x": torch.randn(5, 4), "scale": 2.0}
    step = placed(trace_inference(module, inputs), inputs, 0, devices)
    other = torch.randn(5, 4)
    found, expected = step(x=other, scale=2.0), module(x=other, scale=2.0)
    assert found["n"] == 7
    assert torch.equal(found["a"], expected["a"])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found["both"], expected["both"], strict=True))
    for arguments, says in (
        ({"x": other}, "takes x, scale by name"),
        ({"x": other, "scale": 3.0}, "captured with 2.0 as value 1 of its arguments, not 3.0"),
        (
            {"x": other[:2], "scale": 2.0},
            r"a tensor \(5, 4\) of float32 as value 0 of its arguments, not a tensor \(2, 4\)",
        ),
        ({"x": [other], "scale": 2.0}, "captured with other arguments"),
    ):
        with pytest.raises(RunError, match=says):
            step(**arguments)
    with pytest.raises(RunError, match="takes x, scale by name and 0 targets, not 1"):
        step(other, x=other, scale=2.0)


def test_an_op_that_fails_ends_the_step_on_all_devices(devices: list[LocalDevice]) -> None:
    """With one error that names it; the next step works."""
    module, x, target = tied(), torch.randint(11, (2, 5)), torch.randint(3, (10,))
    step = placed(trace_training(module, [x], loss_of, targets=[target]), [x], 0, devices, [target])
    good = step(x, target)
    for _ in range(3):
        with pytest.raises(RunError, match=r"op '.*(nll_loss|embedding).*' on cpu:[01]: IndexError"):
            step(x + 100, target)
    assert torch.equal(step(x, target), good)
    with pytest.raises(RunError, match="Made takes 1 inputs and 1 targets, not 1"):
        step(x)


def test_what_no_kernel_takes_fails_with_the_error_of_torch(devices: list[LocalDevice]) -> None:
    """Fake tensors have shapes of dtypes that don't go together."""
    module = Made(lambda self, x: nn.functional.linear(x, self.w), w=nn.Parameter(torch.ones(3, 4, dtype=torch.half)))
    x = torch.ones(2, 4)
    with pytest.raises(RunError, match=r"op 'mm' on cpu:0: RuntimeError: .* to have the same dtype"):
        placed(trace_inference(module, [x]), [x], [0, 0], devices)(x)


def test_a_thread_that_is_gone() -> None:
    lost = open_devices(["cpu:0", "cpu:1"])
    module, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(3, 4)
    step = placed(trace_inference(module, [x]), [x], 3, lost)
    step(x)
    lost[1].thread.shutdown()
    with pytest.raises(RunError, match="the thread of a device is gone"):
        step(x)
    lost[0].thread.shutdown()


def test_an_order_that_contradicts_the_graph(devices: list[LocalDevice]) -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)
    capture = trace_inference(module, [x])
    problem = PlacementProblem(capture.graph, load_cluster("2xv100"))
    schedule = simulate(problem, np.zeros(problem.num_ops, np.int64))
    with pytest.raises(RunError, match="the order of cpu:0 contradicts the graph"):
        PlacedModule(capture, [x], (), replace(schedule, order=schedule.order[::-1]), devices)


def test_memory_of_what_goes_from_core_to_core_counts_where_it_is_needed(devices: list[LocalDevice]) -> None:
    """Cores share it, devices with memory of their own don't: the first one has sent away the exponential."""

    def there_and_back(self: Any, x: Tensor) -> Tensor:
        a = x.exp()
        return a * a.neg().sin().repeat(10).cos().sum()

    x, kinds_of_other, module = torch.zeros(1000), ("aten.neg", "aten.mul"), Made(there_and_back)
    capture = trace_inference(module, [x])
    placement = np.array([int(kind in kinds_of_other) for kind in capture.graph.op_types])
    schedule = simulate(PlacementProblem(capture.graph, load_cluster("2xcpu-core")), placement)
    _, peaks = PlacedModule(capture, [x], [], schedule, devices).peak_bytes(x)
    assert peaks == schedule.peak_memory.tolist() == [20 * x.nbytes, 2 * x.nbytes + 4]


def test_parameters_and_buffers_settle_on_the_device_that_they_are_placed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "kernel", lambda self, node: node.target)  # nothing is run
    module = conv()
    capture = trace_training(module, [torch.randn(2, 3, 8, 8)], lambda y: y.square().sum())
    problem = PlacementProblem(capture.graph, load_cluster("2xv100"))
    core, other = (LocalDevice(name, name, torch.device(name), 1, ThreadPoolExecutor(1)) for name in ("cpu", "meta"))
    step = PlacedStep(capture, simulate(problem, np.ones(problem.num_ops, np.int64)), [core, other])
    leaves, copies = input_leaves(module, [torch.randn(2, 3, 8, 8)]), {}  # type: ignore[var-annotated]
    settled = step.settled(leaves, copies)
    assert [leaf.device.type for leaf in settled[:-1]] == ["meta"] * 8 + ["cpu"]  # a counter, which is no op's
    assert settled[-1] is leaves[-1]
    assert all(a is b for a, b in zip(settled, step.settled(leaves, copies), strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gradients_go_with_their_parameters() -> None:
    """A module that has gradients, and is placed on another device."""
    module, x = nn.Linear(4, 3), torch.randn(5, 4)
    other = nn.Linear(4, 3)
    other.load_state_dict(module.state_dict())
    capture = trace_training(module, [x], lambda y: y.square().sum())
    opened = open_devices(["cpu:0", "cuda:0"])
    for device in range(2):
        placed(capture, [x], [device] * capture.graph.num_ops, opened)(x)
        other(x).square().sum().backward()
    assert {parameter.device.type for parameter in module.parameters()} == {"cuda"}
    assert_same_gradients(module.cpu(), other, rtol=1e-4)
