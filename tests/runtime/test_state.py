"""Statistics of batch norms that several devices compute, or one with memory of its own."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import placeto
from placeto.capture.trace import trace_training
from placeto.errors import RunError
from placeto.runtime.local_devices import LocalDevice
from placeto.runtime.program import Program
from tests.captures import Made, square
from tests.runtime.true import placed


@pytest.mark.parametrize("split", [[0, 0, 0], [0, 1, 1], [1, 0, 1]])
@pytest.mark.parametrize(("calls", "momentum"), [(1, 0.1), (2, 0.1), (1, 1.0)])
def test_statistics_are_those_of_one_call_after_the_other(
    split: list[int], calls: int, momentum: float, devices: list[LocalDevice]
) -> None:
    """Wherever micro-batches compute the norm, and however often they call it."""

    def several(self: Any, x: Tensor) -> Tensor:
        return sum((self.norm(x * (number + 1)) for number in range(calls)), x)

    module = Made(several, norm=nn.BatchNorm1d(3, momentum=momentum))
    twin, x = copy.deepcopy(module), torch.randn(12, 3)
    capture = trace_training(module, [x], square, micro_batches=3)
    ops = zip(capture.graph.micro_batches, capture.graph.op_names, strict=True)
    placement = [split[part] if "norm" in name else 0 for part, name in ops]
    step = placed(capture, [x], placement, devices)
    for _ in range(2):
        step(x)
        for part in x.chunk(3):
            twin(part)
    for mine, its in zip(module.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("parts", [1, 2])
def test_buffers_of_devices_with_memory_of_their_own_are_updated(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    """As on GPUs: what a program is given is a copy. Micro-batches are equal: devices have another order of them."""

    def moved(self: Program, leaves: list[Any]) -> list[Any]:
        return [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    monkeypatch.setattr(Program, "moved", moved)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    other, x = nn.Sequential(*[type(part)(*part.weight.shape[::-1]) for part in module]), torch.randn(5, 4)
    other.load_state_dict(module.state_dict())
    whole, options = x.repeat(parts, 1), {"loss": square, "micro_batches": parts, "placer": "roundrobin"}
    made: Any = placeto.place(module, [whole], cluster="2xv100", **options)
    step = made.compile(devices=["cpu:0", "cpu:1"])
    for _ in range(2):
        step(whole)
        for _ in range(parts):
            other(x)
    for mine, its in zip(module.buffers(), other.buffers(), strict=True):
        assert torch.equal(mine, its) if parts == 1 else torch.allclose(mine, its, rtol=1e-5)


def test_statistics_depend_on_the_placement_and_not_on_timing() -> None:
    module, x = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), torch.randn(8, 4)
    options: dict[str, Any] = {"loss": square, "micro_batches": 2, "placer": "roundrobin"}
    made: Any = placeto.place(module, [x], cluster="2xv100", **options)
    step, before = made.compile(devices=["cpu:0", "cpu:1"]), [buffer.clone() for buffer in module.buffers()]
    found = set()
    for _ in range(20):
        for buffer, value in zip(module.buffers(), before, strict=True):
            buffer.copy_(value)
        step(x)
        found.add(tuple(module[1].running_mean.tolist()))
    assert len(found) == 1


@pytest.mark.filterwarnings("ignore")  # torch calls its quantization deprecated
@pytest.mark.parametrize("training", [True, False])
def test_buffers_that_get_another_shape(training: bool) -> None:
    """Observers for quantization give their buffers shapes in the first step."""
    from torch.ao.quantization import get_default_qat_qconfig, prepare_qat

    module, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)), torch.randn(3, 6)
    module.qconfig = get_default_qat_qconfig("fbgemm")
    module = prepare_qat(module)

    def step() -> Any:
        how: dict[str, Any] = {"loss": square} if training else {"training": False}
        made: Any = placeto.place(module, [x], cluster="2xv100", placer="roundrobin", **how)
        return made.compile(devices=["cpu:0", "cpu:1"])

    before = copy.deepcopy(module.state_dict())
    with pytest.raises(RunError, match=r"gives '0.weight_fake_quant.scale' another shape.*: call the module once"):
        step()(x)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    module(x)
    twin = copy.deepcopy(module)
    found, wanted = step()(x), square(twin(x)) if training else twin.eval()(x)
    assert torch.equal(found, wanted)
    assert all(map(torch.equal, module.buffers(), twin.buffers()))
