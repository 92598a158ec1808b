"""Of every module in the zoo: what its graph says is what a real step does."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Interpreter, Node

from placeto.capture import trace_training
from placeto.capture.building.ops import is_view
from placeto.capture.costing.flops import uncounted
from placeto.capture.costing.node_costs import tensor_bytes
from placeto.capture.inputs.arguments import input_leaves
from placeto.capture.tracing.checkpoints import without_reentrant_checkpoints
from tests.capture.steps import run_eagerly
from tests.capture.zoo import ZOO
from tests.capture.zoo_flops import ZOO_FLOPS


class Sizes(Interpreter):
    """Runs a trace on real tensors and keeps the bytes of what each node makes, and of the rests of its storages."""

    def __init__(self, traced: torch.fx.GraphModule) -> None:
        super().__init__(traced)
        self.made: dict[str, list[int]] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        parts = value if isinstance(value, list | tuple) else [value]
        tensors = [part for part in parts if isinstance(part, Tensor) and part.numel()]
        made = self.made[n.name] = list(map(tensor_bytes, tensors))
        if not is_view(n.target) and n.target is not torch.ops.aten.copy.default:
            rests = (part.untyped_storage().nbytes() - size for part, size in zip(tensors, made, strict=True))
            self.made[n.name] = made + [rest for rest in rests if rest]
        return value


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.filterwarnings("ignore")  # other packages' own
def test_graph_is_what_runs(name: str) -> None:
    entry = ZOO[name]
    pytest.importorskip(entry.package)
    step = entry.make()
    state = {key: value.clone() for key, value in step.module.state_dict().items()}
    capture = trace_training(step.module, step.inputs, step.loss, targets=step.targets, run=entry.run)
    graph = capture.graph
    torch.testing.assert_close(dict(step.module.state_dict()), state, rtol=0, atol=0)
    torch.manual_seed(0)
    with torch.backends.mkldnn.flags(enabled=False), without_reentrant_checkpoints():
        loss = run_eagerly(step)
    assert graph.flops.sum() == ZOO_FLOPS[name]
    assert not uncounted(graph)

    parameters = dict(step.module.named_parameters())
    kept = {op: graph.param_bytes[i] for op, i in graph.index.items() if graph.op_types[i] == "parameter"}
    assert kept == {n: p.numel() * p.element_size() for n, p in parameters.items() if n in kept}
    assert set(kept) == set(parameters)
    resident = [*parameters.values(), *step.module.buffers()]
    assert graph.param_bytes.sum() == sum(tensor_bytes(tensor) for tensor in resident)
    trained = {op for op, i in graph.index.items() if graph.trained_bytes[i]}
    assert trained == {n for n, p in parameters.items() if p.grad is not None}

    torch.manual_seed(0)
    sizes = Sizes(capture.traced)
    with torch.backends.mkldnn.flags(enabled=False):
        outputs = sizes.run(*input_leaves(step.module, step.inputs, step.targets))
    torch.testing.assert_close(outputs[0].detach(), loss)
    for p, gradient in zip((p for p in parameters.values() if p.requires_grad), outputs[1:], strict=True):
        assert (gradient is None) == (p.grad is None)
        if gradient is not None:
            torch.testing.assert_close(gradient, p.grad)
    for op, names in enumerate(capture.nodes):
        made = graph.output_bytes[graph.output_ptr[op] : graph.output_ptr[op + 1]].tolist()
        tensors = sizes.made[names[0]]  # what follows them stands for zeros and the like that the op reads
        if graph.op_types[op] == "aten.native_batch_norm":  # where it runs, it returns its statistics as well
            tensors = tensors[:3]
        assert [size for size in made if size][: len(tensors)] == tensors, graph.op_names[op]
