"""Parameters and buffers that a step doesn't read lie on a device all the same."""

import copy

import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_inference, capture_training
from tests.captures import colocated, on_one_device, record, square
from tests.runtime.true import assert_next_step, step_of


class Heads(nn.Module):
    """Of two heads a step uses one, of several experts those that are given."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.body, self.one = nn.Linear(16, 16), nn.Linear(16, 4)
        self.two = nn.Sequential(nn.Linear(16, 400), nn.BatchNorm1d(400))
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 16)) for _ in range(experts))
        self.register_buffer("table", torch.zeros(1000, 16))

    def forward(self, x: Tensor) -> Tensor:
        return self.one(self.experts[1](self.body(x)))


def total(module: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in [*module.parameters(), *module.buffers()])


def test_all_parameters_and_buffers_have_a_place() -> None:
    module = Heads()
    used = [*module.body.parameters(), *module.one.parameters(), *module.experts[1].parameters()]
    trained = 4 * sum(p.numel() for p in used)
    graph = capture_training(module, [torch.zeros(2, 16)], lambda y: y.sum())
    assert graph.param_bytes.sum() == total(module)
    # without a gradient there is no state either, as in PyTorch
    assert (graph.trained_bytes.sum(), graph.state_bytes.sum()) == (trained, 3 * trained)
    inference = capture_inference(module, [torch.zeros(2, 16)])
    assert inference.param_bytes.sum() == total(module)
    assert on_one_device(graph).peak_memory[0] >= total(module) + 3 * trained


def test_idle_modules_are_groups_that_can_be_moved() -> None:
    graph = capture_training(Heads(), [torch.zeros(2, 16)], lambda y: y.sum())
    two = {name for name in graph.op_names if name.startswith("two.")}
    assert "two.1.running_mean" in two
    assert colocated(graph, "two.0.weight") == {name for name in two if name.startswith("two.0")}
    assert colocated(graph, "two.1.weight") == {name for name in two if name.startswith("two.1")}
    expert = {f"experts.0.{layer}.{what}" for layer in (0, 1) for what in ("weight", "bias")}
    assert colocated(graph, "experts.0.0.weight") == expert
    assert record(graph, "table")["type"] == "buffer"


def test_what_a_busy_module_does_not_read_stays_with_it() -> None:
    class Layer(nn.Linear):
        def __init__(self) -> None:
            super().__init__(8, 8)
            self.unused = nn.Parameter(torch.zeros(5))
            self.register_buffer("idle", torch.zeros(7))

    graph = capture_inference(nn.Sequential(Layer(), nn.Linear(8, 8)), [torch.zeros(2, 8)])
    assert colocated(graph, "0.unused") == {"0.unused", "0/addmm"}
    assert record(graph, "0/addmm")["param_bytes"] == 4 * 7


def test_counters_of_batches_count() -> None:
    graph = capture_training(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), [torch.zeros(2, 8)], lambda y: y.sum())
    assert record(graph, "1/native_batch_norm")["param_bytes"] == 2 * 4 * 8 + 8
    assert "buffer" not in graph.op_types


@pytest.mark.parametrize("placer", ["single", "roundrobin", "metis", "heft", "etf", "m-topo", "m-etf", "multilevel"])
def test_steps_with_idle_parameters_are_placed_and_run(placer: str) -> None:
    module, x = Heads(), torch.randn(4, 16)
    twin = copy.deepcopy(module)
    assert_next_step(step_of(module, [x], loss=square, placer=placer), module, twin, x)
