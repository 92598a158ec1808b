"""Peak memory of captured steps: in closed form, with checkpoints, and against real runs on the cpu."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placeto.capture.trace import capture_inference, capture_training
from placeto.capture.tracing.meanwhile import meanwhile
from placeto.problem.cluster import load_cluster
from placeto.problem.graph.graph_memory import assumed, storage
from placeto.problem.problem import PlacementProblem
from placeto.runtime.measuring.meter import Meter
from placeto.simulator.schedule import simulate
from tests.capture.zoo import Block
from tests.captures import Made, inputs_of, meta, on_one_device, record, training
from tests.memory_meter import peak_of_training_step


def test_linear_takes_its_parameters_once_in_inference_and_four_times_in_training() -> None:
    linear = nn.Linear(32, 64, device="meta")
    parameters = 4 * (32 * 64 + 64)
    inference = on_one_device(capture_inference(linear, [meta(2, 32)]))
    assert inference.peak_memory.tolist() == [parameters + 4 * 2 * 64, 0]
    graph = training(linear, meta(2, 32))
    # the output is summed up: it lives until the loss, of 4 bytes, is there
    assert on_one_device(graph).peak_memory.tolist() == [4 * parameters + 4 * 2 * 64 + 4, 0]
    assert record(graph, "grad/mm")["resident_outputs"] == [0]


@pytest.mark.parametrize(
    ("optimizer", "made"),
    [
        ("sgd", torch.optim.SGD),
        ("momentum", partial(torch.optim.SGD, momentum=0.9)),
        ("adagrad", torch.optim.Adagrad),
        ("rmsprop", torch.optim.RMSprop),
        ("adam", torch.optim.Adam),
        ("adamw", torch.optim.AdamW),
    ],
)
def test_optimizers_keep_as_much_as_pytorchs_do(optimizer: str, made: Callable[..., torch.optim.Optimizer]) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).to(torch.bfloat16)
    module[0].requires_grad_(False)
    x = torch.zeros(2, 8, dtype=torch.bfloat16)
    graph = capture_training(module, [x], lambda y: y.sum(), optimizer=optimizer)
    real = made([p for p in module.parameters() if p.requires_grad], lr=0.1)
    module(x).sum().backward()
    real.step()
    state = [
        value for kept in real.state.values() for key, value in kept.items() if key != "step" and value is not None
    ]
    tensors = [*state, *(p.grad for p in module.parameters() if p.grad is not None)]
    assert graph.state_bytes.sum() == sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize(("optimizer", "beside"), [("sgd", 4), ("momentum", 8), ("adam", 12)])
def test_master_weights_beside_those_of_16_bits(optimizer: str, beside: int) -> None:
    """Weight and gradient of 2 bytes, a copy of 4 and states of 4 each; parameters in float32 need no copy."""
    parts = nn.Sequential(nn.Linear(8, 8, bias=False, dtype=torch.bfloat16), nn.Linear(8, 8, bias=False))
    module = Made(lambda self, x: self.parts[1](self.parts[0](x).float()).sum(), parts=parts)
    x = torch.zeros(2, 8, dtype=torch.bfloat16)
    plain, mixed = (
        capture_training(module, [x], lambda y: y, optimizer=optimizer, master_weights=master, optimizer_step=True)
        for master in (False, True)
    )
    half, single = (plain.index[f"parts.{layer}.weight"] for layer in (0, 1))
    assert (mixed.param_bytes + mixed.state_bytes)[half] == 64 * (2 + 2 + beside)
    assert mixed.state_bytes[single] == plain.state_bytes[single]
    assert plain.state_bytes[half] == plain.state_bytes[single] // 2
    # gradient and copy and states are read, weight and copy and states are written
    assert record(mixed, f"parts.0.weight/{optimizer}")["bytes_accessed"] == 64 * (2 + 2 + 2 * beside)
    assert f"{4 + beside} bytes a parameter of 16 bits" in assumed(mixed, optimizer, master_weights=True)
    assert "no master weights in float32" in assumed(plain, optimizer)


def test_parts_of_a_parameter_are_resident_and_partial_gradients_live() -> None:
    half = Made(
        lambda self, x: torch.tanh(x @ self.weight[:, :4]).square() @ self.weight[4:, :],
        weight=nn.Parameter(torch.zeros(8, 8)),
    )
    graph = training(half, meta(2, 8))
    kinds = np.array(graph.op_types)
    parts = [name for name, kind in zip(graph.op_names, kinds, strict=True) if kind == "aten.slice"]
    assert all(record(graph, name)["resident_outputs"] == [0] for name in parts)
    made = [name for name in graph.op_names if "resident_outputs" in record(graph, name) and name not in parts]
    assert [name.split("/")[-1] for name in made] == ["add"], "the sum of two gradients, and neither of them"


def test_what_the_backward_pass_could_do_early_waits() -> None:
    """Of a sine the backward pass takes the cosine, which depends on the forward pass alone."""
    sine = Made(
        lambda self, x: self.other(torch.sin(self.one(x))).square().mean(), one=nn.Linear(4, 4), other=nn.Linear(4, 4)
    )
    graph = capture_training(sine.to("meta"), [meta(2, 4)])
    assert inputs_of(graph, "grad/cos") == ["one/addmm", "other/grad/mm"]
    first = next(name for name in graph.op_names if "/grad/" in f"/{name}")
    assert "mean" in inputs_of(graph, first), "the first of all waits for the loss"


def test_dropout_masks_are_drawn_when_they_are_needed() -> None:
    module = nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(4, 4), nn.Dropout())])
    graph = capture_training(module.to("meta"), [meta(2, 4)], lambda y: y.sum())
    masks = [name for name in graph.op_names if "bernoulli" in name]
    assert [inputs_of(graph, name) for name in masks] == [["0/addmm"], ["2/addmm"], ["4/addmm"]]


@pytest.mark.parametrize("training_dtype", [torch.float32, torch.bfloat16])
def test_masks_take_a_byte_a_number_on_gpus(training_dtype: torch.dtype) -> None:
    """On CPU cores they are floating-point numbers, as PyTorch keeps them there."""
    module = nn.Sequential(nn.Linear(8, 32), nn.Dropout(), nn.Linear(32, 8)).to("meta", training_dtype)
    graph = capture_training(module, [meta(16, 8).to(training_dtype)], lambda y: y.sum())
    size, numbers = training_dtype.itemsize, 16 * 32
    (mask,) = [op for op, kind in enumerate(graph.op_types) if kind == "aten.div"]
    tensor = graph.output_ptr[mask]
    for cluster, each in (("2xv100", 1), ("2xcpu-core", size)):
        problem = PlacementProblem(graph, load_cluster(cluster))
        assert problem.live_bytes[tensor] == each * numbers
        (dropped,) = [op for op, name in enumerate(graph.op_names) if name == "1/mul"]
        assert problem.live_bytes[graph.output_ptr[dropped]] == size * numbers


def test_a_tensor_lives_as_long_as_the_last_of_its_views() -> None:
    def halves(module: Any, x: Tensor) -> Tensor:
        """Of a product cut in two, one half is needed at once and the other at the end."""
        left, right = module.layer(x).chunk(2, dim=1)
        return left.exp().exp() + right

    graph = capture_inference(Made(halves, layer=nn.Linear(4, 64, bias=False)).to("meta"), [meta(128, 4)])
    product, half = graph.index["layer/mm"], 4 * 128 * 32
    (parts,) = np.flatnonzero(np.array(graph.op_types) == "aten.split")
    owners = storage(graph)
    assert owners[graph.output_ptr[parts] : graph.output_ptr[parts + 1]].tolist() == [graph.output_ptr[product]] * 2
    schedule = on_one_device(graph)
    # beside the product two exponentials, then the second of them and the sum
    assert schedule.peak_memory[0] - schedule.problem.resident_bytes.sum() == 4 * half


def residual(self: Any, x: Tensor) -> Tensor:
    """The argument lives until the function has returned, as a tensor of a residual connection does."""

    def block(y: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(y)))

    return block(self.enter(x)).sigmoid()


def of_gradients(self: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        y = self.enter(x).requires_grad_()
        (force,) = torch.autograd.grad(self.down(self.up(y).tanh()).sum(), y)
    return force.detach()


def in_both_directions(self: Any, x: Tensor) -> Tensor:
    """The gates of the first direction live until those of the second one are there."""
    return self.layers(self.enter(x).view(16, 4, 32))[0]


def with_a_bias(self: Any, x: Tensor, factor: float | None = None) -> Tensor:
    """Attention is written out if its bias needs a gradient: in an inference, a parameter or a view of it does."""
    bias = self.down.weight[:, :32]
    parts = [self.enter(x).view(2, 2, 32, 16)] * 3
    return F.scaled_dot_product_attention(*parts, attn_mask=bias if factor is None else bias * factor)


def of_an_ensemble(self: Any, x: Tensor) -> Tensor:
    """The stacked weights need a gradient by themselves, as those of `torch.func.stack_module_state` do."""
    weights = torch.stack([self.up.weight] * 8).detach().requires_grad_()
    return torch.func.vmap(F.linear, (None, 0))(self.enter(x), weights).mean(0)


def of_attention(self: Any, x: Tensor) -> Tensor:
    """Gradients through the bias of an attention, as of forces."""
    with torch.enable_grad():
        y = self.enter(x).view(64, 32).requires_grad_()
        made = F.scaled_dot_product_attention(*[y[None, None]] * 3, attn_mask=y @ y.T)
        (force,) = torch.autograd.grad(made.sum(), y)
    return force.detach()


@pytest.mark.parametrize(
    ("forward", "error"),
    [
        (residual, 0.0),
        (in_both_directions, 0.05),
        (with_a_bias, 0.0),
        (partial(with_a_bias, factor=2.0), 0.0),
        (of_an_ensemble, 0.0),
        (of_gradients, 0.2),
        (of_attention, 0.2),
    ],
)
def test_an_inference_frees_what_pytorch_frees_without_autograd(
    forward: Callable[[Any, Tensor], Tensor], error: float
) -> None:
    """A module that takes gradients itself, such as forces, needs what autograd saves; it is captured, too."""
    layers = nn.LSTM(32, 32, bidirectional=True, batch_first=True)
    module = Made(forward, enter=nn.Linear(16, 32), up=nn.Linear(32, 128), down=nn.Linear(128, 32), layers=layers)
    x = torch.rand(64, 16)
    schedule = on_one_device(capture_inference(module, [x]), "2xcpu-core")
    with (
        torch.no_grad(),
        meanwhile(torch._C._set_mkldnn_enabled, False, True),
        Meter([*module.parameters(), x]) as meter,
    ):
        module(x)
    live = schedule.peak_memory[0] - schedule.problem.resident_bytes.sum()
    assert live == pytest.approx(meter.peak([]), rel=error)


def attention(dropout: float) -> nn.Module:
    """A transformer's encoder of two layers with a classifier."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=dropout, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return Made(lambda self, x: self.out(self.encoder(x)[:, 0]), encoder=encoder, out=nn.Linear(32, 10))


STEPS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "mlp": lambda: (
        nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(64, 64), nn.ReLU())], nn.Linear(64, 10)),
        torch.zeros(128, 64),
    ),
    "transformer": lambda: (attention(0.0), torch.zeros(8, 24, 32)),
    "transformer with dropout": lambda: (attention(0.1), torch.zeros(8, 24, 32)),
    "cnn": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            *[Block(8) for _ in range(3)],
            nn.MaxPool2d(2),
            Block(8),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 10),
        ),
        torch.zeros(4, 3, 16, 16),
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_peak_is_that_of_a_real_step(step: str) -> None:
    """Of activations and gradients of them a run on the cpu holds as much, beside parameters and their gradients."""
    module, x = STEPS[step]()
    targets = [torch.zeros(len(x), dtype=torch.long)]
    assert_as_real(module, x, targets, 0.01)


def assert_as_real(module: nn.Module, x: Tensor, targets: list[Tensor], error: float) -> None:
    schedule = on_one_device(capture_training(module, [x], F.cross_entropy, targets=targets), "2xcpu-core")
    live = schedule.peak_memory[0] - schedule.problem.resident_bytes.sum()
    assert live == pytest.approx(peak_of_training_step(module, [x], F.cross_entropy, targets), rel=error)


class _Reversed(torch.autograd.Function):
    """A block that keeps its output alone: the backward pass computes the input again, and then the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: nn.Module, g: nn.Module, *parameters: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        left = left + f(right)
        y = torch.cat([left, right + g(left)], -1)
        ctx.parts = f, g
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (f, g), (y,) = ctx.parts, ctx.saved_tensors
        (left, right), (of_left, of_right) = y.chunk(2, -1), gradient.chunk(2, -1)
        with torch.enable_grad():
            left = left.detach().requires_grad_()
            made = g(left)
            more, *of_g = torch.autograd.grad(made, [left, *g.parameters()], of_right)
            of_left = of_left + more
            right = (right - made.detach()).requires_grad_()
            more, *of_f = torch.autograd.grad(f(right), [right, *f.parameters()], of_left)
        return torch.cat([of_left, of_right + more], -1), None, None, *of_f, *of_g


def reversible(self: Any, x: Tensor) -> Any:
    for f, g in zip(self.f, self.g, strict=True):
        x = _Reversed.apply(x, f, g, *f.parameters(), *g.parameters())
    return self.out(x)


@pytest.mark.parametrize("blocks", [1, 4])
def test_a_reversible_block_holds_what_it_holds_in_a_real_step(blocks: int) -> None:
    """What its backward pass computes is there until it has returned."""
    f, g = (
        nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)) for _ in range(blocks))
        for _ in range(2)
    )
    module = Made(reversible, f=f, g=g, out=nn.Linear(32, 10))
    assert_as_real(module, torch.randn(2048, 32), [torch.zeros(2048, dtype=torch.long)], 0.03)


@pytest.mark.parametrize(
    "layers",
    [
        nn.LSTM(32, 32, 2, bidirectional=True, batch_first=True),
        nn.GRU(32, 32, 2, batch_first=True),
        nn.RNN(32, 32, bidirectional=True, batch_first=True),
    ],
    ids=str,
)
def test_recurrent_layers_hold_as_much_as_in_a_real_step(layers: nn.RNNBase) -> None:
    """They keep the gates of all time steps until they have stacked the results, and gates cut of one tensor whole."""
    module = Made(lambda self, x: self.out(self.layers(x)[0]).mean(1), layers=layers, out=nn.LazyLinear(10))
    x, targets = torch.randn(32, 6, 32), [torch.zeros(32, dtype=torch.long)]
    module(x)
    assert_as_real(module, x, targets, 0.03)


class Language(nn.Module):
    """A small GPT whose output layer has the embedding's weight, or its own; with its blocks in checkpoints or not."""

    def __init__(self, words: int, tied: bool, again: str) -> None:
        super().__init__()
        layer = partial(nn.TransformerEncoderLayer, 32, 4, 128, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.words, self.blocks = nn.Embedding(words, 32), nn.ModuleList(layer() for _ in range(3))
        self.norm, self.out, self.again = nn.LayerNorm(32), nn.Linear(32, words, bias=False), again
        if tied:
            self.out.weight = self.words.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(32))

    def forward(self, x: Tensor) -> Tensor:
        y = self.words(x)
        for block in self.blocks:
            reentrant = self.again == "reentrant"
            y = checkpoint(block, y, self.mask, use_reentrant=reentrant) if self.again else block(y, self.mask)
        return self.out(self.norm(y)).flatten(0, 1)


@pytest.mark.parametrize(
    ("words", "tied", "again"),
    [(64, False, ""), (64, True, "plain"), (64, False, "reentrant"), (512, True, ""), (512, True, "plain")],
)
def test_a_gpt_with_checkpoints_takes_what_it_takes_in_a_real_step(words: int, tied: bool, again: str) -> None:
    """With parameters and their gradients, which stay there between steps; and no longer by priority."""
    module, x = Language(words, tied, again), torch.zeros(8, 32, dtype=torch.long)
    targets = [torch.zeros(8 * 32, dtype=torch.long)]
    graph = capture_training(module, [x], F.cross_entropy, targets=targets, optimizer="sgd")
    schedule = on_one_device(graph, "2xcpu-core")
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    tensors = [one for p in module.parameters() for one in (p, p.grad) if one is not None]
    assert schedule.problem.resident_bytes.sum() == sum(one.nbytes for one in (*tensors, module.mask))
    real = sum(one.nbytes for one in tensors) + peak_of_training_step(module, [x], F.cross_entropy, targets, tensors)
    assert schedule.peak_memory[0] == pytest.approx(real, rel=0.05)
    by_priority = simulate(PlacementProblem(graph, load_cluster("2xcpu-core")), np.zeros(graph.num_ops, np.int64))
    assert by_priority.peak_memory.tolist() == schedule.peak_memory.tolist()
    assert by_priority.makespan_us <= schedule.makespan_us * (1 + 1e-9)
