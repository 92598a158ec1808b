"""Parameters and multiply-adds of the models as published; beside each number stands where it is published."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from graphs import amoebanet, bert, gnmt, inception_v3, llama, nasnet, resnet, rnnlm, transformer_xl
from graphs.training_step import TrainingStep
from placeto.capture.trace import capture_inference
from tests.graphs.test_graphs_models import on_meta, parameters


def named(value: Any) -> str | None:
    """The module of a step, in place of its repr."""
    return value.__module__ if callable(value) else None


@pytest.mark.parametrize(
    ("step", "network", "published"),
    [  # torchvision's documentation of the weights: num_params
        (resnet.training_step, resnet.Network(50, 1), 25_557_032),
        (resnet.training_step, resnet.Network(101, 1), 44_549_160),
        (resnet.training_step, resnet.Network(152, 1), 60_192_808),
        (resnet.training_step, resnet.Network(50, 1, width=2), 68_883_240),
        (resnet.training_step, resnet.Network(101, 1, width=2), 126_886_696),
        (inception_v3.training_step, inception_v3.Network(1), 27_161_264),  # auxiliary classifier included
    ],
    ids=named,
)
def test_as_many_parameters_as_in_torchvision(
    step: Callable[[Any], TrainingStep], network: Any, published: int
) -> None:
    assert parameters(on_meta(step, network).module) == published


@pytest.mark.parametrize(
    ("step", "network", "published"),
    [
        # README.md of the authors' code, research/slim/nets/nasnet of github.com/tensorflow/models
        (nasnet.training_step, nasnet.MOBILE, 5.3e6),
        (nasnet.training_step, nasnet.LARGE, 88.9e6),
        (amoebanet.training_step, amoebanet.PAPER, 86.7e6),  # Real et al. (2019), table 2
        # the large model of Zaremba et al. (2014), as counted by Shen et al. (ICLR 2019, Ordered Neurons), table 1
        (rnnlm.training_step, rnnlm.Network(2, 1500), 66e6),
        # the model of Wu et al. (2016), as counted by Shazeer et al. (2017, arXiv 1701.06538), table 2
        (gnmt.training_step, gnmt.Network(8, steps=2), 278e6),
        (transformer_xl.training_step, transformer_xl.Network(12), 41e6),  # Dai et al. (2019), table 2
        (bert.training_step, bert.BASE, 110e6),  # Devlin et al. (2019), section 3
        (bert.training_step, bert.LARGE, 340e6),  # the same
        (llama.training_step, llama.Network(llama.LLAMA_7B, 8, 1), 6.7e9),  # Touvron et al. (2023), table of sizes
        # README.md of github.com/jzhang38/TinyLlama
        (llama.training_step, llama.Network(llama.LLAMA_1B, 8, 1), 1.1e9),
    ],
    ids=named,
)
def test_as_many_parameters_as_published(step: Callable[[Any], TrainingStep], network: Any, published: float) -> None:
    assert parameters(on_meta(step, network).module) == pytest.approx(published, rel=0.015)


@pytest.mark.parametrize(
    ("step", "network", "published", "within"),
    [
        # torchvision's documentation of the weights: GFLOPS, in which a multiply-add counts as one
        (resnet.training_step, resnet.Network(50, 2), 4.089e9, 2e-4),
        (inception_v3.training_step, inception_v3.Network(2), 5.713e9, 2e-4),
        # as for the parameters; which small terms were counted isn't said
        (nasnet.training_step, nasnet.MOBILE, 564e6, 0.015),
        (nasnet.training_step, nasnet.LARGE, 23.8e9, 0.015),
        (amoebanet.training_step, amoebanet.PAPER, 23.1e9, 0.015),
    ],
    ids=named,
)
def test_multiply_adds_as_published(
    step: Callable[[Any], TrainingStep], network: Any, published: float, within: float
) -> None:
    built = on_meta(step, network)
    if hasattr(built.module, "auxiliary"):
        built.module.auxiliary = nn.Identity()
    assert multiply_adds(built) / network.batch == pytest.approx(published, rel=within)


def multiply_adds(step: TrainingStep) -> int:
    """Of the convolutions and linear layers of a forward pass; takes the norms, which have none, out of the module."""
    total = 0

    def called(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        nonlocal total
        total += output.numel() * module.weight[0].numel()  # type: ignore[index, union-attr]

    for module in list(step.module.modules()):
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(called)
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.Identity())
    with torch.no_grad():
        step.module(*step.inputs)
    return total


def test_captured_flops_are_those_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(resnet.STAGES, 50, (2, 1))
    built = on_meta(resnet.training_step, resnet.Network(50, 2))
    flops = capture_inference(built.module, built.inputs).flops.sum()
    assert flops == 2 * multiply_adds(built)
