"""From a function of a module, its inputs and targets to what it records and the graph of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from placeto.capture.arguments import plain
from placeto.capture.checkpoints import without_reentrant_checkpoints
from placeto.capture.checks import check_arguments, check_module
from placeto.capture.errors import CaptureError, explain, without_logs
from placeto.capture.labels import Labels
from placeto.capture.micro_batches import TRACED, accumulated, batch_length, completed, joined, split_batch
from placeto.capture.names import with_names
from placeto.capture.ops import computation_graph
from placeto.capture.recorder import functional, mutates, record
from placeto.problem.dtypes import PRECISIONS
from placeto.problem.fields import choice
from placeto.problem.graph import ComputationGraph, GraphError

_SEED = 0  # of the random numbers of a step that is computed


@dataclass(frozen=True, eq=False)
class Capture:
    """A graph with what was traced for it: what a placed graph needs to be run.

    `traced` is functional. Its inputs are the leaves of (parameters, buffers, inputs, targets) in the module's order,
    its outputs the loss and the gradients of the trainable parameters, None where there is none; of inference the
    tensors that the module returns. Nodes behind no op are constants, show an input, or nobody needs them.
    """

    graph: ComputationGraph
    traced: GraphModule
    nodes: tuple[tuple[str, ...], ...]  # (N,) names of the traced nodes that each op stands for: its own, then views
    gradients: Mapping[str, tuple[str, int] | None]  # of each parameter: op and output, None for a constant
    rebuild: Callable[[Sequence[Any]], Any]  # from the outputs of inference, what the module returns


def capture_step(
    module: nn.Module,
    inputs: Any,
    targets: Any,
    function: Callable[[Any, Any, int], list[Tensor | None]],
    labels: Labels,
    *,
    name: str,
    mode: str,
    precision: str,
    run: bool,
    micro_batches: int,
) -> Capture:
    """What a function of inputs and targets that calls the module does, as a graph.

    Args:
        module: whose parameters are fake while the function runs; if `run`, they are copies of its own.
        inputs: arguments of the module, see `capture_training`.
        targets: further arguments of the loss.
        function: of a micro-batch's plain inputs and targets and its number; returns its loss and gradients, or what
            it gives in inference.
        labels: in use by the function.
        name: of the graph.
        mode: "training" or "inference".
        precision: see `capture_training`.
        run: whether to compute.
        micro_batches: into how many to split the batch.

    Raises:
        CaptureError: see `capture_training`.
    """
    check_module(module, name)
    choice(*PRECISIONS)(precision, f"{name}: precision", CaptureError)
    check_arguments(inputs, targets, name)
    tensor = _real if run else _fake
    if run:
        _check_values(module, (plain(inputs), plain(targets)), name)
    with ExitStack() as stack:
        for context in (_without_onednn(), without_logs(), without_reentrant_checkpoints(), _keeping_tensors(module)):
            stack.enter_context(context)
        stack.enter_context(torch.random.fork_rng(devices=[]) if run else FakeTensorMode(allow_non_fake_inputs=True))
        whole = _Step(module, function, labels, micro_batches)

        def values() -> Any:
            if run:  # each pass is to draw the same numbers
                torch.random.manual_seed(_SEED)
            params = {key: tensor(p).requires_grad_(p.requires_grad) for key, p in whole.named_parameters()}
            buffers = {key: tensor(b) for key, b in whole.named_buffers()}
            return params, buffers, *(tree_map(tensor, plain(values)) for values in (inputs, targets))

        leaves, spec = tree_flatten(values())

        def flat(*leaves: Any) -> Any:
            params, buffers, arguments, extra = tree_unflatten(leaves, spec)
            return torch.func.functional_call(whole, {**params, **buffers}, (arguments, extra))

        paths = [key for key, _ in whole.named_parameters()]
        trained = [key for key, p in module.named_parameters() if p.requires_grad] if mode == "training" else []
        if mode == "training" and not trained:
            raise CaptureError(f"{name}: the module has no trainable parameter")

        def join(graph: Graph, parts: list[list[Any]]) -> list[Any]:
            if mode == "training":
                return accumulated(graph, parts, trained)
            return joined(graph, parts, batch_length(inputs, targets))

        try:
            for parts in dict.fromkeys((min(TRACED, micro_batches) if not run else micro_batches, micro_batches)):
                whole.parts = parts
                with torch.enable_grad(), labels.following(module):
                    traced = record(flat, leaves, labels)
                if mutates(traced):
                    traced = functional(traced, tree_flatten(values())[0])
                if micro_batches == 1 or completed(traced, parts, micro_batches, join):
                    break
        except CaptureError:
            raise
        # whatever a user's module raises while it's traced, the reader wants to know that, and where
        except (Exception, SystemExit) as error:
            given = tree_flatten((plain(inputs), plain(targets)))[0]
            shapes = " and ".join(str(tuple(leaf.shape)) for leaf in given if isinstance(leaf, Tensor))
            hint = f"the tensors given have shapes {shapes}" if shapes and not isinstance(error, SystemExit) else ""
            raise CaptureError(f"{name}: {explain(error, module, hint)}") from error
    paths = [key.removeprefix("module.") for key in paths]
    num_buffers = len(list(module.named_buffers()))
    try:
        made = computation_graph(traced, paths, trained, num_buffers, name, mode, precision == "tf32")
    except GraphError as error:
        raise CaptureError(f"{name}: {error}") from error
    graph, nodes, gradients = made
    return Capture(with_names(graph, nodes, traced, module, inputs), traced, nodes, gradients, list)


class _Step(nn.Module):
    """A function of a module, as a module: its parameters can be swapped for others until the function returns."""

    def __init__(
        self, module: nn.Module, function: Callable[[Any, Any, int], list[Tensor | None]], labels: Labels, count: int
    ) -> None:
        super().__init__()
        self.module = module
        self.function = function
        self.labels = labels
        self.count = self.parts = count  # micro-batches, and how many of them are traced

    def forward(self, arguments: Any, extra: Any) -> list[Tensor | None]:
        """The outputs of each part that is traced, one after another."""
        if self.count == 1:
            return self.function(arguments, extra, 0)
        outputs: list[Tensor | None] = []
        for number, values in enumerate(split_batch(arguments, extra, self.count)[: self.parts]):
            with self.labels.of_micro_batch(number):
                outputs += self.function(*values, number)
        return outputs


def _fake(value: Any) -> Any:
    """A fake tensor on the cpu of the same layout (fakes on "cuda" abort a build of torch without CUDA)."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")


def _real(value: Any) -> Any:
    """A copy of a tensor, on the cpu, for a step to change: the module is left as it was."""
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def _check_values(module: nn.Module, arguments: Any, name: str) -> None:
    tensors = [("parameter", p) for p in module.parameters()] + [("buffer", b) for b in module.buffers()]
    tensors += [("input", leaf) for leaf in tree_flatten(arguments)[0] if isinstance(leaf, Tensor)]
    for what, tensor in tensors:
        if tensor.is_meta:
            raise CaptureError(f"{name}: to be run, it needs values, and a {what} is on the device meta")


@contextmanager
def _keeping_tensors(module: nn.Module) -> Iterator[None]:
    """Afterwards a module has its own tensors again: `functional_call` loses those of a module with two names."""
    holders: list[Any] = [holder for part in module.modules() for holder in (part._parameters, part._buffers)]
    before = [dict(holder) for holder in holders]
    try:
        yield
    finally:
        for holder, tensors in zip(holders, before, strict=True):
            holder.clear()
            holder.update(tensors)


@contextmanager
def _without_onednn() -> Iterator[None]:
    """With oneDNN, `nn.LSTM` on the cpu is a single op."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)
