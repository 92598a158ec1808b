"""Modules that are refused before they are traced, with what to do instead."""

import warnings

import pytest
import torch
from torch import nn

from placeto.capture.trace import capture_inference, capture_training
from placeto.errors import CaptureError
from tests.captures import Made, meta, training


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_refused_by_path(kind: type[nn.Module]) -> None:
    module = nn.Sequential(nn.Sequential(kind(50, 8, sparse=True)), nn.Linear(8, 2))
    ids = torch.ones(4, 3, dtype=torch.int64)
    with pytest.raises(
        CaptureError, match=rf"^Sequential: module '0\.0' \({kind.__name__}\) .*: make it with sparse=F"
    ):
        capture_training(module, [ids], lambda y: y.sum())
    assert capture_inference(module, [ids]).num_ops
    module[0].requires_grad_(False)
    assert capture_training(module, [ids], lambda y: y.sum()).num_ops


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.LSTM(4, 4)])
def test_quantised_modules_are_refused(layer: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer), {type(layer)}, dtype=torch.qint8)
    with pytest.raises(
        CaptureError, match=r"^Sequential: module '0.*' \(\w+\) is quantised, .*: give the module as it"
    ):
        capture_inference(module, [torch.ones(3, 2, 4)])


def test_wrappers_that_average_gradients_between_processes_are_refused() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        module, x = nn.parallel.DistributedDataParallel(nn.Linear(4, 4)), torch.ones(3, 4)
    finally:
        torch.distributed.destroy_process_group()
    with pytest.raises(CaptureError, match=r"^DistributedDataParallel: the module averages gradients .*: give the"):
        capture_training(module, [x], lambda y: y.sum())
    assert capture_training(module.module, [x], lambda y: y.sum()).num_ops


def test_a_function_that_torch_compiled_is_captured_as_it_was() -> None:
    def wave(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1.0

    module, x = Made(lambda self, x: self.function(self.layer(x)), layer=nn.Linear(4, 4), function=wave), meta(2, 4)
    plain = training(module, x)
    module.function = torch.compile(wave)
    compiled = training(module, x)
    assert compiled.hash == plain.hash
    assert "aten.sin" in compiled.op_types


def test_distributions_do_not_read_values() -> None:
    class Noisy(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mean = super().forward(x)
            normal = torch.distributions.Normal(mean, mean.exp())
            return normal.log_prob(normal.rsample())

    kind = torch.distributions.Distribution
    kind.set_default_validate_args(True)
    graph = capture_training(Noisy(4, 4), [torch.empty(2, 4)], lambda y: y.sum())
    assert any(op.startswith("aten.normal") for op in graph.op_types)
    assert kind._validate_args  # elsewhere they look


class Graph(nn.Linear):
    """A layer whose output is multiplied by a matrix: a buffer, or an argument."""

    def __init__(self, neighbours: torch.Tensor | None = None) -> None:
        super().__init__(4, 4)
        self.register_buffer("neighbours", neighbours)

    def forward(self, x: torch.Tensor, neighbours: torch.Tensor | None = None) -> torch.Tensor:
        return (self.neighbours if neighbours is None else neighbours) @ super().forward(x)


def padded(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([x[:2], x[1:]], layout=torch.jagged).to_padded_tensor(0.0)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_tensors_are_refused_and_dense_ones_are_not(layout: torch.layout) -> None:
    sparse, x = torch.eye(3).to_sparse(layout=layout), torch.ones(3, 4)
    kind = str(layout).removeprefix("torch.")
    with pytest.raises(CaptureError, match=rf"^Graph: the module has a {kind} tensor, 'neighbours': .* by .to_dense"):
        capture_inference(Graph(sparse), [x])
    with pytest.raises(CaptureError, match=rf"^Graph: an argument is a {kind} tensor: .* by .to_dense"):
        capture_training(Graph(), [x, sparse], lambda y: y.sum())
    assert capture_inference(Graph(sparse.to_dense()), [x]).num_ops


def test_nested_tensors_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"test_checks.py:\d+: .*; sparse and nested tensors can't be captured"):
        capture_inference(Made(lambda self, x: padded(x)), [torch.ones(3, 4)])


def test_flex_attention_is_refused_also_in_an_inference() -> None:
    """torch's own message is about the backward pass, of which an inference has none."""
    from torch.nn.attention.flex_attention import flex_attention

    module = Made(lambda self, x: flex_attention(*[self.layer(x)[:, None]] * 3), layer=nn.Linear(16, 16))
    with pytest.raises(CaptureError, match="flex_attention can't be captured, nor in an inference"):
        capture_inference(module, [torch.randn(2, 8, 16)])
