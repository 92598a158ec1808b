from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from placeto.capture import CaptureError, capture_inference, capture_training
from placeto.graph import ComputationGraph


def meta(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta")


def training(module: nn.Module, *inputs: Tensor, **options: object) -> ComputationGraph:
    return capture_training(module.to("meta"), inputs, lambda y: y.sum(), **options)  # type: ignore[arg-type]


def record(graph: ComputationGraph, name: str) -> dict:
    return graph.to_ops()[graph.index[name]]


def inputs_of(graph: ComputationGraph, name: str) -> list[str]:
    return [source for source, _ in record(graph, name)["inputs"]]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def test_mlp_op_by_op() -> None:
    graph = capture_training(mlp(), [meta(2, 8)], F.cross_entropy, targets=[torch.zeros(2, dtype=torch.long)])
    assert graph.name == "Sequential"
    assert graph.mode == "training"
    kinds = dict(zip(graph.op_names, graph.op_types, strict=True))
    assert kinds == {
        "0.bias": "parameter",
        "0.weight": "parameter",
        "0/addmm": "aten.addmm",
        "1/relu": "aten.relu",
        "2.bias": "parameter",
        "2.weight": "parameter",
        "2/addmm": "aten.addmm",
        "loss/_log_softmax": "aten._log_softmax",
        "loss/nll_loss_forward": "aten.nll_loss_forward",
        "loss/grad/nll_loss_backward": "aten.nll_loss_backward",
        "loss/grad/_log_softmax_backward_data": "aten._log_softmax_backward_data",
        "2/grad/mm": "aten.mm",
        "2/grad/mm_1": "aten.mm",
        "2/grad/sum": "aten.sum",
        "1/grad/threshold_backward": "aten.threshold_backward",
        "0/grad/mm": "aten.mm",
        "0/grad/sum": "aten.sum",
    }
    assert record(graph, "0.weight") == {
        "name": "0.weight",
        "type": "parameter",
        "flops": 0.0,
        "bytes_accessed": 0.0,
        "param_bytes": 4 * 8 * 16,
        "outputs": [4 * 8 * 16],
        "inputs": [],
        "colocation": record(graph, "0/addmm")["colocation"],
        "module": "0",
    }
    first = record(graph, "0/addmm")
    assert first["flops"] == 2 * 2 * 8 * 16
    assert first["bytes_accessed"] == 4 * (16 + 2 * 8 + 8 * 16 + 2 * 16)  # bias, input, weight, output
    assert inputs_of(graph, "0/addmm") == ["0.bias", "0.weight"]  # the model's input is on every device
    # gradient of the input, of the weight and of the bias of the second layer
    assert inputs_of(graph, "2/grad/mm") == ["loss/grad/_log_softmax_backward_data", "2.weight"]
    assert inputs_of(graph, "2/grad/mm_1") == ["loss/grad/_log_softmax_backward_data", "1/relu"]
    assert record(graph, "2/grad/mm")["outputs"] == [4 * 2 * 16]
    assert record(graph, "2/grad/mm_1")["outputs"] == [4 * 4 * 16]
    assert inputs_of(graph, "1/grad/threshold_backward") == ["2/grad/mm", "1/relu"]
    assert inputs_of(graph, "0/grad/mm") == ["1/grad/threshold_backward"]
    assert graph.modules[graph.index["0/grad/mm"]] == "0"
    # forward, then twice that for the second layer, once for the first: its input needs no gradient
    assert graph.flops.sum() == 2 * (2 * 2 * 8 * 16) + 3 * (2 * 2 * 16 * 4)
    assert graph.param_bytes.sum() == 4 * (8 * 16 + 16 + 16 * 4 + 4)


@pytest.mark.parametrize(
    ("conv", "forward"),
    [
        (nn.Conv2d(8, 12, 3, padding=1, bias=False), 2 * 2 * 12 * 8 * 9 * 10 * 10),
        (nn.Conv2d(8, 12, 3, stride=2, groups=4, bias=False), 2 * 2 * 12 * 2 * 9 * 4 * 4),
        (nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), 2 * 2 * 8 * 9 * 10 * 10),
        (nn.ConvTranspose2d(8, 12, 2, stride=2, bias=False), 2 * 2 * 12 * 8 * 4 * 10 * 10),
    ],
)
def test_flops_of_convolutions(conv: nn.Module, forward: int) -> None:
    x = meta(2, 8, 10, 10)
    graph = training(nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), conv), x)
    assert record(graph, "1/convolution")["flops"] == forward
    of_input, of_weight = record(graph, "1/grad/convolution_backward"), record(graph, "1/grad/convolution_backward_1")
    assert of_input["flops"] == of_weight["flops"] == forward
    assert (of_input["outputs"], of_weight["outputs"]) == ([4 * 2 * 8 * 10 * 10], [4 * conv.weight.numel()])
    # beside the gradient of its output, here a constant; of the other input each needs the shape alone
    assert (of_input["inputs"], of_weight["inputs"]) == ([["1.weight", 0]], [["0/convolution", 0]])
    first = record(graph, "0/grad/convolution_backward")
    assert first["flops"] == record(graph, "0/convolution")["flops"]  # of the weight alone
    assert first["outputs"] == [4 * 8 * 8]


def test_flops_agree_with_a_real_run() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    x = torch.randn(4, 3, 8, 8)
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    assert capture_training(module, [x], lambda y: y.sum()).flops.sum() == counter.get_total_flops()


def test_real_and_meta_modules_give_the_same_graph_every_time() -> None:
    x = torch.randn(4, 3, 8, 8)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    before = {key: value.clone() for key, value in module.state_dict().items()}
    graphs = [capture_training(module, [x], lambda y: y.sum()) for _ in range(2)]
    graphs.append(training(module, meta(4, 3, 8, 8)))
    assert len({graph.hash for graph in graphs}) == 1
    fresh = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    fresh.load_state_dict(before)
    capture_training(fresh, [x], lambda y: y.sum())
    assert all(torch.equal(value, before[key]) for key, value in fresh.state_dict().items())
    assert all(p.grad is None for p in fresh.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in fresh.modules())


def test_in_place_ops_become_ops_with_outputs() -> None:
    graphs = [
        training(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=in_place)), meta(2, 4))
        for in_place in (False, True)
    ]
    assert graphs[0].hash == graphs[1].hash
    assert "1/native_batch_norm" in graphs[0].index
    norm = record(graphs[0], "1/native_batch_norm")
    assert norm["param_bytes"] == 2 * 4 * 4  # its buffers: running mean and variance
    assert norm["outputs"] == [2 * 4 * 4, 4 * 4, 4 * 4]


class Shared(nn.Module):
    """One layer, applied three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return x


def test_shared_weight_is_one_tensor_and_its_gradient_is_accumulated() -> None:
    graph = training(Shared(), meta(2, 8))
    assert graph.op_types.count("parameter") == 1
    users = [graph.op_names[i] for i in graph.edge_dst[graph.edge_src == graph.index["layer.weight"]]]
    assert users == ["layer/mm", "layer@1/mm", "layer@2/mm", "layer@2/grad/mm_1", "layer@1/grad/mm_1"]
    assert record(graph, "layer.weight")["colocation"] == record(graph, "layer/mm")["colocation"]
    assert graph.colocation[graph.index["layer@1/mm"]] == -1
    # the sums go with the later of the two gradients, call by call
    assert inputs_of(graph, "layer@1/grad/add") == ["layer@2/grad/mm", "layer@1/grad/mm"]
    assert inputs_of(graph, "layer/grad/add") == ["layer@1/grad/add", "layer/grad/mm"]
    assert graph.modules[graph.index["layer/grad/add"]] == "layer"
    assert set(graph.modules) == {"layer", "", "loss"}


def colocated(graph: ComputationGraph, name: str) -> set[str]:
    """All ops that share a colocation id with an op, or the op alone."""
    colour = graph.colocation[graph.index[name]]
    return {graph.op_names[i] for i in np.flatnonzero(graph.colocation == colour)} if colour >= 0 else {name}


def test_final_gradients_are_colocated_with_their_parameters() -> None:
    graph = training(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 2)), meta(2, 3, 4, 4)
    )
    # one op makes the gradients of weight and bias
    assert colocated(graph, "0.weight") == {"0.weight", "0.bias", "0/convolution", "0/grad/convolution_backward"}
    norm = {"2.weight", "2.bias", "2/native_layer_norm", "2/grad/native_layer_norm_backward"}
    assert colocated(graph, "2.weight") == norm
    # two ops: of the weight (a transpose of it is left out), and of the bias; the input's gradient is free
    assert colocated(graph, "3.weight") == {"3.weight", "3.bias", "3/addmm", "3/grad/mm_1", "3/grad/sum"}
    assert colocated(graph, "3/grad/mm") == {"3/grad/mm"}


def test_of_a_sum_of_gradients_only_the_last_is_colocated() -> None:
    graph = training(Shared(), meta(2, 8))
    assert colocated(graph, "layer.weight") == {"layer.weight", "layer/mm", "layer/grad/add"}
    for name in ("layer@2/grad/mm", "layer@1/grad/mm", "layer/grad/mm", "layer@1/grad/add"):
        assert graph.colocation[graph.index[name]] == -1


def test_gradient_that_is_a_slice_is_colocated_through_its_maker() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.zeros(4, 8)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.cat([self.a, self.b])

    graph = training(Two(), meta(2, 8))
    assert colocated(graph, "a") == {"a", "b", "cat", "grad/mm", "grad/slice", "grad/slice_1"}


def test_op_that_makes_a_gradient_for_others_too_is_colocated() -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.output = nn.Embedding(10, 4), nn.Linear(4, 3, bias=False)
            self.start = nn.Parameter(torch.zeros(5, 4))

        def forward(self, words: Tensor) -> Tensor:
            return self.output(torch.tanh(self.embedding(words) + self.start))

    graph = capture_training(Learned(), [torch.zeros(5, dtype=torch.long)], lambda y: y.sum())
    # of `start` without further ado, and of the embedding after one more op
    assert colocated(graph, "start") == {"start", "add", "grad/tanh_backward"}
    backward = "embedding/grad/embedding_dense_backward"
    assert inputs_of(graph, backward) == ["grad/tanh_backward"]
    assert colocated(graph, backward) == {"embedding.weight", "embedding/embedding", backward}


def test_parameters_without_a_gradient_of_their_own() -> None:
    class Bias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.layer, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.frozen.requires_grad_(False)
            self.last = nn.Parameter(torch.zeros(2, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.frozen(x)) + self.last

    graph = training(Bias(), meta(2, 4))
    assert colocated(graph, "last") == {"last", "add"}  # its gradient is constant
    assert colocated(graph, "frozen.weight") == {"frozen.weight", "frozen.bias", "frozen/addmm"}
    gradients = {"layer/grad/mm", "layer/grad/sum"}
    assert colocated(graph, "layer.weight") == {"layer.weight", "layer.bias", "layer/addmm", *gradients}
    assert not any(name.startswith("unused") for name in graph.op_names)


def test_without_a_training_step_there_are_no_gradients_to_colocate() -> None:
    graph = capture_inference(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), [meta(2, 4)])
    assert colocated(graph, "0.weight") == {"0.weight", "0.bias", "0/addmm"}
    assert colocated(graph, "1.weight") == {"1.weight", "1.bias", "1/addmm"}


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (nn.LSTM(16, 16, num_layers=2), [meta(6, 2, 16)]),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 4, enable_nested_tensor=False), [meta(6, 2, 16)]),
        (
            nn.Sequential(*[nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)) for _ in range(8)]),
            [meta(1, 4, 32, 32)],
        ),
    ],
)
def test_colocation_stays_within_a_layer(module: nn.Module, inputs: list[Tensor]) -> None:
    graph = capture_training(
        module.to("meta"), inputs, lambda y: y[0].sum() if isinstance(y, tuple) else y.square().sum()
    )
    parameters = np.array(graph.op_types) == "parameter"
    groups = Counter(graph.colocation[parameters].tolist())
    assert -1 not in groups
    assert max(groups.values()) <= 2  # weight and bias
    for group in groups:
        modules = {graph.modules[i].removesuffix(".out_proj") for i in np.flatnonzero(graph.colocation == group)}
        assert len(modules) == 1


def test_tied_weights_are_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 4)
            self.output = nn.Linear(4, 10, bias=False)
            self.output.weight = self.embedding.weight

        def forward(self, words: Tensor) -> Tensor:
            return self.output(self.embedding(words))

    graph = capture_training(Tied(), [torch.zeros(3, dtype=torch.long)], lambda y: y.sum())
    assert graph.param_bytes.sum() == 4 * 10 * 4
    assert graph.op_types.count("parameter") == 1
    # the sum of both gradients
    assert colocated(graph, "embedding.weight") == {"embedding.weight", "embedding/embedding", "embedding/grad/add"}
    assert len(inputs_of(graph, "embedding/grad/add")) == 2
    lookup = record(graph, "embedding/embedding")
    assert lookup["bytes_accessed"] == 2 * 4 * 3 * 4 + 8 * 3  # as much read as written, and the words


def test_views_are_left_out_and_slices_cost_nothing() -> None:
    class Slices(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 12, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            a, b, c = self.layer(x).t().t().reshape(2, 12).chunk(3, dim=1)
            return torch.sigmoid(a) * torch.tanh(b) + c.exp()

    graph = training(Slices(), meta(2, 8))
    assert not {"aten.t", "aten.view", "aten.detach", "aten.alias"} & set(graph.op_types)
    split = record(graph, "split")
    assert (split["flops"], split["bytes_accessed"]) == (0.0, 0.0)
    assert split["outputs"] == [4 * 2 * 4] * 3
    assert split["colocation"] == record(graph, "layer/mm")["colocation"]
    assert record(graph, "tanh")["inputs"] == [["split", 1]]
    free = (graph.flops == 0) & (graph.bytes_accessed == 0)
    assert np.all(graph.colocation[free] >= 0)


def test_sliced_parameter_goes_with_the_user_of_the_slice() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight[:4]

    graph = training(Half(), meta(2, 4))
    assert inputs_of(graph, "slice") == ["weight"]
    assert len({int(graph.colocation[graph.index[name]]) for name in ("weight", "slice", "mm")}) == 1


def test_constants_are_left_out() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("mask", torch.ones(4))
            self.plain = torch.ones(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.mask + torch.zeros(4) + torch.zeros_like(x) + self.plain

    graph = capture_training(Masked(), [torch.ones(2, 4)], lambda y: y.sum())
    assert Counter(graph.op_types)["aten.add"] == 3
    assert not {"aten.zeros", "aten.zeros_like", "aten.ones_like"} & set(graph.op_types)
    assert record(graph, "mul")["param_bytes"] == 4 * 4
    assert inputs_of(graph, "mul") == ["layer/addmm"]


def test_unused_and_frozen_parameters() -> None:
    module = nn.ModuleDict({"used": nn.Linear(4, 4), "frozen": nn.Linear(4, 4), "unused": nn.Linear(4, 4)})
    module["frozen"].requires_grad_(False)

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Tensor:
            return self.inner["used"](self.inner["frozen"](x))

    graph = training(Wrapper(), meta(2, 4))
    assert "inner.frozen/addmm" in graph.index
    assert not any(name.startswith(("inner.frozen/grad", "inner.unused")) for name in graph.op_names)


def test_lstm_is_captured_op_by_op() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 8, num_layers=2)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0]

    graph = training(Model(), meta(5, 2, 8))
    # per layer: one product for all inputs, one per step; backwards without the gradient of x
    forward = 2 * (2 * (5 * 2) * 8 * 32 + 5 * 2 * 2 * 8 * 32)
    assert sum(f for f, name in zip(graph.flops, graph.op_names, strict=True) if "/grad/" not in name) == forward
    steps = [name for name in graph.op_names if name.startswith("lstm/addmm")]
    assert len(steps) == 2 * (1 + 5)
    assert set(graph.modules) == {"lstm", "loss"}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # inside torch.export
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inference_graph_has_the_ops_of_torch_export() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(), nn.Flatten())
    module.append(nn.Linear(8 * 36, 5))
    x = torch.randn(2, 3, 8, 8)
    graph = capture_inference(module, [x], name="net")
    assert (graph.name, graph.mode) == ("net", "inference")
    assert module.training
    assert graph.op_types.count("aten.native_dropout") == 0
    kinds = [kind for kind in graph.op_types if kind != "parameter"]
    exported = torch.export.export(module.eval(), (x,)).run_decompositions()
    names = [str(n.target.overloadpacket) for n in exported.graph.nodes if hasattr(n.target, "overloadpacket")]
    expected = [name for name in names if name not in ("aten.permute", "aten.t", "aten.view", "aten.clone")]
    renamed = {"aten._native_batch_norm_legit_no_training": "aten.native_batch_norm"}
    assert kinds == [renamed.get(name, name) for name in expected]


def test_attention_and_transformer() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    graph = training(layer, meta(2, 6, 16))
    tokens, heads = 2 * 6, 2
    attention = 2 * (2 * 2 * heads * 6 * 6 * 8)  # scores and values
    forward = 2 * tokens * 16 * (3 * 16 + 16 + 32 + 32)
    total = sum(f for f, name in zip(graph.flops, graph.op_names, strict=True) if "/grad/" not in name)
    assert total == forward + attention
    assert any(name.startswith("self_attn/grad/") for name in graph.op_names)
    inference = capture_inference(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), [meta(2, 6, 16)])
    assert inference.flops.sum() == 2 * total


def test_checkpointed_module_is_run_again_in_the_backward_pass() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    graph = training(Model(), meta(2, 8))
    again = [name for name in graph.op_names if "/grad/addmm" in name]
    assert [name.split("@")[0] for name in again] == ["inner.0"]  # the second product isn't needed again
    assert graph.modules[graph.index[again[0]]] == "inner.0"


def test_a_model_that_returns_its_loss() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.mse_loss(self.net(x), y)

    graph = capture_training(Loss(), [meta(2, 8), meta(2, 4)])
    assert "mse_loss" in graph.index
    assert graph.op_types.count("aten.mm") == 3


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum().item() > 0 else x


@pytest.mark.parametrize(
    ("module", "inputs", "loss", "message"),
    [
        (mlp(), [meta(2, 7)], None, "tracing failed"),
        (mlp(), [meta(2, 8)], None, "the loss must be a scalar tensor, not a tensor of shape \\(2, 4\\)"),
        (mlp(), [meta(2, 8)], lambda y: 3.0, "the loss must be a scalar tensor, not a float"),
        (mlp(), [meta(2, 8)], lambda y: y.detach().sum(), "doesn't depend on any trainable parameter"),
        (mlp(), meta(2, 8), None, "inputs must be a sequence of arguments, not a tensor"),
        (nn.ReLU(), [meta(2, 8)], lambda y: y.sum(), "has no trainable parameter"),
        (Branching(), [meta(2, 8)], lambda y: y.sum(), "tracing failed: DataDependentOutputException"),
        (torch.relu, [meta(2, 8)], None, "a torch.nn.Module can be captured, not a builtin"),
    ],
)
def test_user_errors(module: nn.Module, inputs: list, loss: object, message: str) -> None:
    with pytest.raises(CaptureError, match=f"^net: .*{message}"):
        capture_training(module, inputs, loss, name="net")  # type: ignore[arg-type]


def test_inference_errors() -> None:
    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> int:
            return 3

    with pytest.raises(CaptureError, match="Nothing: the module returns no tensor but a int"):
        capture_inference(Nothing(), [meta(2)])
    with pytest.raises(CaptureError, match="no op"):
        capture_inference(nn.Identity(), [meta(2)])
    with pytest.raises(CaptureError, match=r"function: a torch\.nn\.Module can be captured, not a function"):
        capture_inference(lambda x: x, [meta(2)])  # type: ignore[arg-type]
