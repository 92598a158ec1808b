"""Arguments by name, outputs of any shape, losses that stand in the output."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placeto.capture.inputs.arguments import input_leaves
from placeto.capture.trace import capture_training, trace_training
from placeto.runtime.program import Program
from placeto.runtime.real_steps import real_inference, real_training


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


class Labelled(nn.Module):
    """Called as models of Hugging Face are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, *, x: Tensor, more: dict[str, Any] | None = None, labels: Tensor | None = None) -> Any:
        logits = self.layer(x if more is None else x + more["bias"][0])
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return Output(loss, logits) if more is None else {"loss": loss, "logits": logits, "n": 3, "pair": (logits, x)}


@pytest.mark.parametrize("nested", [False, True])
def test_a_loss_in_the_output_and_arguments_by_name(nested: bool) -> None:
    module = Labelled()
    inputs = {"x": torch.randn(5, 4), "labels": torch.tensor([0, 1, 2, 0, 1])}
    if nested:
        inputs["more"] = {"bias": [torch.randn(4), 2.0]}
    step = real_training(module, inputs)
    loss, *gradients = Program.of(step.capture.traced).compile()(*step.leaves)
    expected = step.eager()
    value = module(**inputs)
    assert torch.equal(loss, value["loss"] if nested else value.loss)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(gradients, expected, strict=True))


def test_the_same_graph_as_in_order() -> None:
    module, x = nn.Linear(4, 3), torch.randn(5, 4)
    in_order = capture_training(module, [x], lambda y: y.sum())
    by_name = capture_training(module, {"input": x}, lambda y: y.sum())
    assert in_order.hash == by_name.hash


def test_outputs_of_inference_are_rebuilt() -> None:
    module = Labelled()
    inputs = {"x": torch.randn(5, 4), "more": {"bias": [torch.randn(4), 2.0]}}
    step = real_inference(module, inputs)
    found = step.capture.rebuild(Program.of(step.capture.traced).compile()(*step.leaves))
    expected = module(**inputs)
    assert found.keys() == expected.keys()
    assert found["loss"] is None
    assert found["n"] == 3
    assert torch.equal(found["logits"], expected["logits"])
    assert torch.equal(found["pair"][1], inputs["x"])


def test_leaves_are_in_the_order_of_the_placeholders() -> None:
    module, inputs = Labelled(), {"labels": torch.tensor([0]), "x": torch.randn(1, 4)}
    capture = trace_training(module, inputs)
    places = [node for node in capture.traced.graph.nodes if node.op == "placeholder"]
    leaves = input_leaves(module, inputs)
    assert [tuple(node.meta["val"].shape) for node in places] == [tuple(leaf.shape) for leaf in leaves]
