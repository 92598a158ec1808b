"""Capture of a training step with a progress bar, which appears only if the capture takes more than 3 seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from graphs.training_step import TrainingStep
from placeto.plumbing.progress import ProgressBar
from placeto.problem.graph import ComputationGraph

PATIENCE_S = 3.0  # seconds before a bar appears
# Shares of the time of a capture, measured on the recurrent families.
_FORWARD = 0.35
_BACKWARD = 0.55


class _Progress:
    """Opens a progress bar at the first report after `PATIENCE_S`, and updates it."""

    def __init__(self, title: str, stack: ExitStack) -> None:
        self.title, self.stack = title, stack
        self.start = time.monotonic()
        self.bar: ProgressBar | None = None

    def show(self, share: float, note: str) -> None:
        if self.bar is None and time.monotonic() - self.start > PATIENCE_S:
            self.bar = self.stack.enter_context(ProgressBar(self.title, 1.0))
        if self.bar is not None:
            self.bar.update(min(share, 1.0), note)


def capture_with_progress(step: TrainingStep, name: str) -> ComputationGraph:
    """Capture the graph of a training step that was built on "meta".

    The shares that are done come from counts: calls of modules are counted in a forward pass beforehand, which takes
    little time as nothing is computed on "meta", and nodes of the backward pass after the forward pass.
    """
    with ExitStack() as stack:
        progress = _Progress(f"capturing {name}", stack)
        total = _count_calls(step)
        calls = 0

        def called(module: nn.Module, arguments: Any) -> None:
            nonlocal calls
            calls += 1
            progress.show(_FORWARD * calls / total, "forward pass")

        for module in step.module.modules():
            stack.callback(module.register_forward_pre_hook(called).remove)

        def loss(*arguments: Any) -> Tensor:
            value = step.loss(*arguments)
            _watch_backward(value, lambda share: progress.show(_FORWARD + _BACKWARD * share, "backward pass"))
            return value

        graph = step._replace(loss=loss).capture(name)
        progress.show(1.0, f"{graph.num_ops:,} ops")
    return graph


def _count_calls(step: TrainingStep) -> int:
    """Return how many calls of modules a forward pass makes."""
    calls = 0

    def called(module: nn.Module, arguments: Any) -> None:
        nonlocal calls
        calls += 1

    with ExitStack() as stack:
        for module in step.module.modules():
            stack.callback(module.register_forward_pre_hook(called).remove)
        with torch.no_grad():
            step.module(*step.inputs)
    return calls


def _watch_backward(loss: Tensor, report: Callable[[float], None]) -> None:
    """Call `report` at each node of the backward pass, with the share of the nodes that are done."""
    nodes: set[Any] = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            stack.extend(parent for parent, _ in node.next_functions)
    done = 0

    def before(gradients: Any) -> None:
        nonlocal done
        done += 1
        report(done / len(nodes))

    for node in nodes:
        node.register_prehook(before)
