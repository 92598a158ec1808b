"""What ops compute in, for each precision of a run."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placeto.capture.trace import capture_inference, capture_training
from placeto.errors import CaptureError
from placeto.placing import place
from placeto.problem.graph import ComputationGraph
from tests.captures import Made, on_one_device


def step(precision: str = "fp32", dtype: torch.dtype = torch.float32) -> ComputationGraph:
    with torch.device("meta"):
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 8), nn.LayerNorm(8)]
        module, x, y = nn.Sequential(*layers).to(dtype), torch.empty(4, 3, 4, 4, dtype=dtype), torch.zeros(4).long()
    return capture_training(module, [x], F.cross_entropy, targets=[y], precision=precision)


def by_type(graph: ComputationGraph) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for kind, dtype in zip(graph.op_types, graph.dtypes, strict=True):
        found.setdefault(kind.removeprefix("aten."), set()).add(dtype)
    return found


HALVES = {"bf16": "bfloat16", "fp16": "float16"}
PRODUCTS = {"convolution", "convolution_backward", "addmm", "mm"}


def test_dtypes_are_those_of_the_traced_tensors() -> None:
    assert set(step().dtypes) == {"float32"}
    assert set(step(dtype=torch.float64).dtypes) == {"float64"}
    half = by_type(step(dtype=torch.bfloat16))
    assert all(half[kind] == {"bfloat16"} for kind in PRODUCTS)


def test_tf32_is_for_products_alone() -> None:
    found = by_type(step("tf32"))
    assert {kind for kind, dtypes in found.items() if dtypes == {"tf32"}} == PRODUCTS
    assert {kind for kind, dtypes in found.items() if dtypes == {"float32"}} == found.keys() - PRODUCTS
    assert "tf32" not in step("tf32", torch.bfloat16).dtypes


@pytest.mark.parametrize(("precision", "dtype"), HALVES.items())
def test_autocast_as_on_a_gpu(precision: str, dtype: str) -> None:
    graph = step(precision)
    found = by_type(graph)
    assert all(found[kind] == {dtype} for kind in PRODUCTS)
    assert found["native_batch_norm"] == found["relu"] == {dtype}
    assert found["native_layer_norm"] == found["_log_softmax"] == {"float32"}, "a CPU's autocast has them in 16 bits"
    assert found["_to_copy"] == {dtype, "float32"}
    full, weights = step(), [name for name in graph.op_names if name.endswith(".weight")]
    assert [graph.param_bytes[graph.index[name]] for name in weights] == [
        full.param_bytes[full.index[name]] for name in weights
    ]
    product = [graph.bytes_accessed[i] for i, kind in enumerate(graph.op_types) if kind == "aten.addmm"]
    assert product == [0.5 * full.bytes_accessed[full.op_types.index("aten.addmm")]]


@pytest.mark.parametrize("device", ["cpu", "cuda", "meta"])
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_a_module_that_autocasts_by_itself(device: str, reentrant: bool | None) -> None:
    """Autocast of a GPU has a norm in 32 bits, and that of a CPU in 16; outside of it, nothing is cast."""
    layers = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))

    def cast(x: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            y = layers[1](layers[0](x))
            with torch.autocast(device, enabled=False):
                return layers[2](y.to(layers[2].weight.dtype))

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        x = self.first(x)
        return cast(x) if reentrant is None else checkpoint(cast, x, use_reentrant=reentrant)

    module = Made(forward, first=nn.Linear(4, 4), layers=layers)
    graph = capture_training(module, [torch.randn(2, 4)], lambda y: y.square().mean())
    dtypes = [dtype for kind, dtype in zip(graph.op_types, graph.dtypes, strict=True) if kind == "aten.addmm"]
    again = {None: [], False: ["bfloat16"], True: ["bfloat16", "float32"]}  # the second way stops before the last layer
    assert dtypes == ["float32", "bfloat16", "float32", *again[reentrant]]
    assert by_type(graph)["native_layer_norm"] == {"bfloat16" if device == "cpu" else "float32"}


def test_a_module_that_autocasts_as_a_whole() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return self.inner(x)

    inner, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Softmax(-1)), torch.randn(2, 4)
    own, whole = capture_inference(Made(forward, inner=inner), [x]), capture_inference(inner, [x], precision="bf16")
    assert by_type(own) == by_type(whole)
    decorated = Made(torch.autocast("cpu", torch.bfloat16)(lambda self, x: self.inner(x)), inner=nn.Linear(4, 4))
    assert by_type(capture_inference(decorated, [x]))["addmm"] == {"bfloat16"}


def test_attention_that_is_written_out_multiplies_in_16_bits() -> None:
    attention = Made(
        lambda self, x: F.scaled_dot_product_attention(*[self.inner(x)] * 3, dropout_p=0.1), inner=nn.Linear(8, 8)
    )
    x = torch.randn(2, 2, 4, 8)
    for precision, dtype in (("fp16", "float16"), ("bf16", "bfloat16"), ("fp32", "float32")):
        graph = capture_training(attention, [x], lambda y: y.float().sum(), precision=precision)
        assert by_type(graph)["bmm"] == {dtype}
    assert not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()


def test_a_checkpoint_casts_its_weights_again() -> None:
    """Autocast's copies are gone after the forward pass, so that they take no memory until the backward pass."""
    inner = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh())
    module = Made(lambda self, x: checkpoint(self.inner, x, use_reentrant=False), inner=inner)
    graph = capture_training(module, [torch.randn(2, 4)], lambda y: y.float().sum(), precision="bf16")
    weight = graph.index["inner.0.weight"]
    users = graph.edge_dst[graph.edge_src == weight].tolist()
    assert [graph.op_types[op] for op in users] == ["aten._to_copy"] * 2
    assert [graph.passes[op] for op in users] == ["forward", "recomputation"]


def test_convolutions_of_groups_say_so() -> None:
    layers = [nn.Conv2d(8, 8, 3, groups=groups, bias=False) for groups in (1, 2, 8)]
    graph = capture_training(nn.Sequential(*layers), [torch.randn(1, 8, 8, 8)], lambda y: y.sum())
    kernels = [kernel for kind, kernel in zip(graph.op_types, graph.kernels, strict=True) if kind != "parameter"]
    assert [k for k in kernels if k] == ["grouped", "depthwise"] + ["depthwise"] * 2 + ["grouped"] * 2


def in_blocks(reentrant: bool | None) -> nn.Module:
    """Two blocks with ops that autocast has in 16 bits and in 32, each in a checkpoint or not."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x) if reentrant is None else checkpoint(block, x, use_reentrant=reentrant)
        return x.square().mean()

    parts = [(nn.LayerNorm(16), nn.Linear(16, 32), nn.Softmax(-1), nn.Linear(32, 16), nn.GELU()) for _ in range(2)]
    return Made(forward, first=nn.Linear(8, 16), blocks=nn.ModuleList(nn.Sequential(*part) for part in parts))


@pytest.mark.parametrize(("precision", "reentrant"), [("bf16", False), ("fp16", True)])
def test_checkpoints_compute_again_in_the_same_precisions(precision: str, reentrant: bool) -> None:
    def captured(reentrant: bool | None, precision: str) -> ComputationGraph:
        return capture_training(in_blocks(reentrant), [torch.randn(64, 8)], precision=precision)

    graph = captured(reentrant, precision)
    again = [name for name in graph.op_names if "/grad/" in name and name.startswith("blocks.")]
    for kind, dtype in (("native_layer_norm", "float32"), ("_softmax", "float32"), ("addmm", HALVES[precision])):
        found = {graph.dtypes[graph.index[name]] for name in again if name.endswith(f"/grad/{kind}")}
        assert found == {dtype}, kind
    assert graph.flops.sum() == captured(reentrant, "fp32").flops.sum()
    whole = captured(None, precision)
    more = graph.flops.sum() - whole.flops.sum()
    assert 0 < more < whole.flops.sum() / 2, "less than the forward pass again, which is a third of the step"
    assert on_one_device(graph).peak_memory[0] < on_one_device(whole).peak_memory[0]


def test_convolutions_of_channels_last_say_so() -> None:
    net = nn.Sequential(
        nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 4, 1)
    )
    x = torch.randn(2, 8, 8, 8)
    last = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    graph = capture_training(last[0], [last[1]], lambda y: y.sum())
    kernels = [k for kind, k in zip(graph.op_types, graph.kernels, strict=True) if "convolution" in kind]
    plain, grouped = "channels_last", "grouped_channels_last"
    assert kernels == [plain, grouped, plain, plain, plain, grouped, grouped, plain]
    volume = nn.Conv3d(4, 4, 3).to(memory_format=torch.channels_last_3d)
    graph = capture_inference(volume, [torch.randn(1, 4, 5, 5, 5).to(memory_format=torch.channels_last_3d)])
    assert graph.kernels[graph.op_types.index("aten.convolution")] == plain


def test_what_a_gpu_does_in_one_dropout_says_so() -> None:
    def parts(mask: Callable[[Tensor], Tensor]) -> list[str]:
        masked = Made(lambda self, x: mask(self.inner(x)).sum(), inner=nn.Linear(4, 4))
        graph = capture_training(masked, [torch.randn(3, 4, 4, 4)])
        return [kind for kind, kernel in zip(graph.op_types, graph.kernels, strict=True) if kernel == "dropout"]

    whole = ["aten.bernoulli", "aten.div", "aten.mul", "aten.mul"]
    assert parts(lambda y: F.dropout(y, 0.1)) == whole
    assert parts(lambda y: F.dropout(y, 0.1, inplace=True)) == whole
    assert parts(lambda y: F.dropout(y.softmax(-1), 0.1)) == whole
    assert parts(lambda y: F.dropout2d(y, 0.1)) == [], "of whole channels: three ops on GPUs, too"
    assert parts(lambda y: y * torch.bernoulli(torch.full_like(y, 0.9)) / 0.9) == [], "by hand"
    assert parts(lambda y: y * (y / 2)) == []


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(CaptureError, match="Linear: precision must be one of fp32, tf32, bf16, fp16, not 'half'"):
        capture_inference(nn.Linear(2, 2), [torch.randn(1, 2)], precision="half")


def test_a_module_is_placed_in_a_precision() -> None:
    result = place(nn.Linear(2, 2), [torch.randn(1, 2)], cluster="2xt4", placer="single", precision="tf32")
    assert result.problem.graph.dtypes.count("tf32") == 1
