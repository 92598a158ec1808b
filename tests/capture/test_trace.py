"""Whole modules, op by op: training steps, inference, and what can't be captured."""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placeto.capture.trace import capture_inference, capture_training, trace_training
from placeto.errors import CaptureError
from tests.captures import Made, Shared, called, inputs_of, meta, mlp, record, training


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
        "colocation": record(graph, "0/grad/mm")["colocation"],
        "module": "0",
        "pass": "forward",
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


def test_shared_weight_is_one_tensor_and_its_gradient_is_accumulated() -> None:
    graph = training(Shared(), meta(2, 8))
    assert graph.op_types.count("parameter") == 1
    users = [graph.op_names[i] for i in graph.edge_dst[graph.edge_src == graph.index["layer.weight"]]]
    assert users == ["layer/mm", "layer@1/mm", "layer@2/mm", "layer@2/grad/mm_1", "layer@1/grad/mm_1"]
    # the sums go with the later of the two gradients, call by call
    assert inputs_of(graph, "layer@1/grad/add") == ["layer@2/grad/mm", "layer@1/grad/mm"]
    assert inputs_of(graph, "layer/grad/add") == ["layer@1/grad/add", "layer/grad/mm"]
    assert graph.modules[graph.index["layer/grad/add"]] == "layer"
    assert set(graph.modules) == {"layer", "", "loss"}


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


BRANCHING = Made(lambda self, x: self.layer(x) if x.sum().item() > 0 else x, layer=nn.Linear(8, 8))


@pytest.mark.parametrize(
    ("module", "inputs", "loss", "message"),
    [
        (mlp(), [meta(2, 7)], None, r"module '0' \(Linear\): RuntimeError: .* \[2, 7\] .*; .* have shapes \(2, 7\)$"),
        (nn.Linear(5, 4), [meta(2, 4)], None, r"the module \(Linear\): RuntimeError: .*have shapes \(2, 4\)"),
        (mlp(), [meta(2, 8)], None, "the loss must be a scalar tensor, not a tensor of shape \\(2, 4\\)"),
        (mlp(), [meta(2, 8)], lambda y: 3.0, "the loss must be a scalar tensor, not a float"),
        (Made(lambda m, x: {"logits": m.layer(x)}, layer=mlp()), [meta(2, 8)], None, "the loss must be a scalar"),
        (mlp(), [meta(2, 8)], lambda y: y.detach().sum(), "doesn't depend on any trainable parameter"),
        (mlp(), [meta(2, 8)], lambda y: y.detach().requires_grad_().sum(), "doesn't depend on any trainable parameter"),
        (mlp(), meta(2, 8), None, "inputs must be a sequence of arguments, such as .*, not a tensor"),
        (nn.ReLU(), [meta(2, 8)], lambda y: y.sum(), "has no trainable parameter"),
        (BRANCHING, [meta(2, 8)], lambda y: y.sum(), r"test_trace.py:\d+: DataDependentOutput.*; .* torch.where"),
        (mlp(), [meta(2, 8)], torch.zeros(2), r"not a tensor of shape \(2,\); targets go into targets=\[...\]"),
        (mlp(), [meta(2, 8)], nn.MSELoss, r"the loss is the class MSELoss: give an instance, MSELoss\(\)"),
        (mlp(), [meta(2, 8)], nn.MSELoss(), "the loss: TypeError: .* missing 1 required .*'target'; .*shapes"),
        (nn.Sequential(nn.LazyLinear(4)), [meta(2, 8)], None, r"module '0' \(LazyLinear\) has parameters of unknown"),
        (mlp, [meta(2, 8)], None, "only a torch.nn.Module can be captured, not a function"),
        (nn.ReLU, [meta(2, 8)], None, "not the class ReLU: give an instance"),
        (torch.relu, [meta(2, 8)], None, "only a torch.nn.Module can be captured, not a builtin"),
    ],
)
def test_user_errors(module: nn.Module, inputs: list, loss: object, message: str) -> None:
    with pytest.raises(CaptureError, match=f"^net: .*{message}"):
        capture_training(module, inputs, loss, name="net")  # type: ignore[arg-type]


def test_targets_must_be_a_sequence() -> None:
    with pytest.raises(CaptureError, match=r"^Sequential: targets must be a sequence of arguments, such as \[x\]"):
        capture_training(mlp(), [meta(2, 8)], F.cross_entropy, targets=torch.zeros(2))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # scripting is
def test_scripted_modules_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"module '0' \(\w+\) is scripted: give the module that went into"):
        capture_inference(nn.Sequential(torch.jit.script(nn.ReLU())), [meta(2, 8)])


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (lambda y: y.detach().sum().item(), "DataDependentOutputException: .*only shapes here"),
        (lambda y: f"{y.detach().sum():.2f}", "TypeError: .*only shapes here"),
        (lambda y: y.detach().numpy(), "RuntimeError: .*only shapes here"),
        (lambda y: y[y > 0], "DynamicOutputShapeException: .*a mask as an index"),
        (lambda y: y + torch.zeros(8, device="cuda"), "leave out .cuda"),
        (lambda y: sys.exit(3), r"sys.exit\(3\) was called$"),
        (lambda y: {}["x"], "KeyError: 'x'"),
    ],
)
def test_what_fails_in_a_module_is_told_with_its_line(
    then: Callable[[Tensor], object], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    awkward = Made(lambda self, x: (y := self.layer(x), then(y))[0], layer=nn.Linear(8, 8))
    with pytest.raises(CaptureError, match=rf"^net: module '0' \(Made\), .*test_trace.py:\d+: .*{message}"):
        training(nn.Sequential(awkward), meta(2, 8), name="net")
    assert capfd.readouterr() == ("", ""), "the message is all"


def test_every_node_that_computes_stands_behind_one_op() -> None:
    """Also behind the ops of a trace: the parameters, and what only shows a tensor of an op."""

    def halves(self: Any, x: Tensor) -> Tensor:
        a, b = self.norm(checkpoint(self.inner, x, use_reentrant=False)).chunk(2, dim=1)
        return (a.t().contiguous() @ b).t()

    inner = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    model = Made(halves, inner=inner, norm=nn.LayerNorm(8), unused=nn.Linear(2, 2))
    capture = trace_training(model.to("meta"), [meta(2, 8)], lambda y: y.square().sum())
    by_name = {node.name: node for node in capture.traced.graph.nodes}
    assert len(capture.nodes) == capture.graph.num_ops
    reached = Counter(name for names in capture.nodes for name in names)
    assert set(reached.values()) == {1}
    for names, kind in zip(capture.nodes, capture.graph.op_types, strict=True):
        target = by_name[names[0]].target
        assert by_name[names[0]].op == "placeholder" if kind == "parameter" else kind == str(target.overloadpacket)
    made = [node for node in capture.traced.graph.nodes if node.op == "call_function"]
    left = {str(node.target).split(".")[1] for node in made if node.name not in reached}
    assert left <= {"ones_like", "expand", "view", "detach"}, "constants, views of them, and what nobody needs"
    capture.traced.graph.lint()


def test_inference_errors() -> None:
    with pytest.raises(CaptureError, match="Made: the module returns no tensor but an int"):
        capture_inference(called(lambda x: 3), [meta(2)])
    with pytest.raises(CaptureError, match="no op"):
        capture_inference(nn.Identity(), [meta(2)])
    with pytest.raises(CaptureError, match=r"function: only a torch\.nn\.Module can be captured, not a function"):
        capture_inference(lambda x: x, [meta(2)])  # type: ignore[arg-type]


def test_what_is_not_an_argument_is_a_constant_also_on_meta() -> None:
    """A factory that a command calls makes all its tensors there; batch norms change tensors."""

    def factory() -> tuple[nn.Module, Tensor, Callable[[Tensor], Tensor]]:
        target, parts = torch.zeros(2, 4), {"layer": nn.Linear(4, 4), "norm": nn.BatchNorm1d(4), "mask": torch.ones(4)}
        module = Made(lambda self, x: self.norm(self.layer(x) * self.mask), **parts)
        return module, torch.ones(2, 4), lambda y: F.mse_loss(y, target)

    graphs = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            module, x, loss = factory()
        graphs.append(capture_training(module, [x], loss, name="masked"))
    assert graphs[0].hash == graphs[1].hash


def test_transforms_of_torch_func() -> None:
    """Modules may be called under `vmap` and `grad`, with tensors that have no storage of their own."""

    def forces(self: Any, x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: self.two(self.one(y).tanh()).sum())(x)

    def each(self: Any, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: self.two(self.one(row).tanh()))(x)

    x = torch.rand(4, 3)
    for forward, count in ((forces, 4), (each, 2)):
        module = Made(forward, one=nn.Linear(3, 5, bias=False), two=nn.Linear(5, 1, bias=False))
        graph = capture_inference(module, [x])
        products = [op for op, kind in enumerate(graph.op_types) if kind in ("aten.mm", "aten.addmm", "aten.bmm")]
        assert len(products) == count
        assert {"one", "two"} <= {graph.modules[op] for op in products}
