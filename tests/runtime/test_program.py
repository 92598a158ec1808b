"""Programs of captured steps: they compute what the module computes, and release what they no longer need."""

import torch
from torch import nn
from torch.nn import functional

from placeto.capture.trace import trace_inference
from placeto.runtime.program import Program, _on_host
from placeto.runtime.real_steps import RealStep, real_inference, real_training
from tests.parts import Parts


class Net(Parts):
    """A convolution with batch norm, a branch with an unused output, and a buffer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x)).relu().mean((2, 3))
        first, _ = self.head(y).chunk(2, dim=1)
        return first.masked_fill(first < -1e9, -float("inf"))


def net() -> Net:
    return Net(conv=nn.Conv2d(2, 4, 3), norm=nn.BatchNorm2d(4), head=nn.Linear(4, 6))


def step() -> RealStep:
    torch.manual_seed(0)
    return real_training(net(), [torch.randn(5, 2, 8, 8)], functional.cross_entropy, targets=[torch.arange(5) % 3])


def test_gradients_are_those_of_the_module_to_the_bit() -> None:
    real = step()
    with torch.no_grad():
        loss, *gradients = Program.of(real.capture.traced).compile()(*real.leaves)
    assert all(torch.equal(a, b) for a, b in zip(gradients, real.eager(), strict=True))
    assert loss.ndim == 0


def test_inference_is_that_of_the_module() -> None:
    real = real_inference(net(), [torch.randn(5, 2, 8, 8)])
    with torch.no_grad():
        (output,) = Program.of(real.capture.traced).compile()(*real.leaves)
        assert torch.equal(output, real.eager())


def test_stamps_are_made_before_the_first_call_and_after_each() -> None:
    real = step()
    program, numbers = Program.of(real.capture.traced), iter(range(10**6))
    with torch.no_grad():
        outputs, stamps = program.compile(lambda: next(numbers))(*real.leaves)
        again = program.compile()(*real.leaves)
    assert stamps == list(range(len(program.calls) + 1))
    assert all(torch.equal(a, b) for a, b in zip(outputs, again, strict=True))


def test_what_nobody_needs_is_left_out() -> None:
    traced = trace_inference(nn.Sequential(nn.Linear(2, 2)), [torch.empty(1, 2, device="meta")]).traced
    output = next(node for node in traced.graph.nodes if node.op == "output")
    with traced.graph.inserting_before(output):
        dead = traced.graph.call_function(torch.ops.aten.neg.default, (output.args[0][0],))
    assert dead not in Program.of(traced).calls


def test_calls_without_a_kernel_there_run_on_the_host() -> None:
    call = _on_host(torch.ops.aten.add.Tensor, torch.device("meta"))
    assert call(torch.ones(2), torch.ones(2)).device.type == "meta"
    assert _on_host(torch.ops.aten.add.Tensor, torch.device("cpu"))(torch.ones(2), torch.ones(2)).tolist() == [2, 2]


def test_a_program_is_given_what_it_reads_on_its_device_and_nothing_else() -> None:
    real = step()
    whole = Program.of(real.capture.traced)
    head = [node for node in whole.calls if node.name.startswith("convolution")][:1]
    program = Program(whole.inputs, tuple(head), head, torch.device("meta"))
    moved = program.moved(real.leaves)
    assert {node for node, leaf in zip(whole.inputs, moved, strict=True) if leaf.is_meta} == set(
        head[0].all_input_nodes
    )
    assert program.reads == set(head[0].all_input_nodes)
    assert all(leaf is given for leaf, given in zip(moved, real.leaves, strict=True) if not leaf.is_meta)
