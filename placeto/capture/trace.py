"""Capture the computation graph of a `torch.nn.Module`: a training step, or inference.

The module is traced on fake tensors: without `run`, nothing is computed and nothing is allocated. So a model that
needs far more memory than the machine has can be captured, best built under ``torch.device("meta")``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import mha

from placeto.capture.building.optimizer_step import with_optimizer_step
from placeto.capture.captured_step import Capture, capture_step
from placeto.capture.inputs.arguments import Inputs, call_module, own_loss
from placeto.capture.inputs.input_checks import check_loss, describe
from placeto.capture.inputs.loss_gradients import gradients_of, requiring_grad
from placeto.capture.inputs.loss_modules import modules_of, tensors_of
from placeto.capture.inputs.objects import holds_tensors
from placeto.capture.tracing.meanwhile import meanwhile
from placeto.capture.tracing.node_labels import Labels
from placeto.capture.tracing.precision import autocast
from placeto.capture.user_errors import call_loss
from placeto.errors import CaptureError
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.graph_memory import with_optimizer
from placeto.problem.graph.memory_fields import DEFAULT_OPTIMIZER

__all__ = ["Capture", "CaptureError", "capture_inference", "capture_training", "trace_inference", "trace_training"]

LOSS_MODULE = "loss"  # module path of the ops of the loss function


def capture_training(
    module: nn.Module,
    inputs: Inputs,
    loss: Callable[..., Tensor] | None = None,
    *,
    targets: Sequence[Any] = (),
    name: str | None = None,
    precision: str = "fp32",
    optimizer: str = DEFAULT_OPTIMIZER,
    optimizer_step: bool = False,
    master_weights: bool = False,
    micro_batches: int = 1,
    run: bool = False,
    width: int = 1,
    parallel: Mapping[str, Any] | None = None,
) -> ComputationGraph:
    """Graph of one training step: forward pass, loss and the gradients of all trainable parameters.

    The graph has the update of the optimizer only with `optimizer_step`, but always the memory of its state. Costs are
    the FLOPs of matrix products and convolutions, and the bytes that each op reads and writes. A parameter is an op
    without cost whose output is the weight; another device that uses the weight is sent a copy. Inputs, targets,
    buffers and constants are assumed to be on every device. Views cost nothing: a view as large as its tensor is left
    out; a smaller one (a slice) is an op without cost that is colocated with its producer, so that only the slice is
    sent. PyTorch computes both gradients of a convolution in one op. Here they are two ops, as those of a matrix
    product are, so that an op that needs the gradient of the input doesn't wait for the gradient of the weight.

    A parameter is colocated with its first user, and with the op that makes its gradient (the last sum if there are
    several), because the optimizer needs the gradient where the weight is. The memory of both is counted with the
    parameter for the whole step. Frozen parameters and buffers have no gradient and no optimizer state.

    If a checkpoint computes an activation again, this op waits for the gradient with which the backward op that needs
    the activation begins. The graph says so by an edge from an output of 0 bytes. Other ops of the backward pass that
    could start early wait in the same way.

    Args:
        module: parameters on any device, "meta" included; it is left as it was.
        inputs: arguments of the module, in a sequence or by name in a mapping; tensors, or nests of them, on any
            device.
        loss: ``loss(output, *targets)`` -> scalar; None if the module returns the scalar loss itself, or an output with
            the loss in ``.loss`` or ``["loss"]``, as the models of Hugging Face do when they are given labels.
        targets: further arguments of the loss.
        name: the name of the graph; the class of the module by default.
        precision: the precision of the run. "fp32": every op computes in the dtypes of its tensors. "tf32": float32
            matrix products and convolutions compute in TF32. "bf16" or "fp16": ops compute as under a GPU's autocast.
        optimizer: decides how much memory each trained parameter takes in addition to its gradient; one of
            `OPTIMIZERS`.
        optimizer_step: add the optimizer's update, an op for each trained parameter, on the parameter's device.
        master_weights: whether 16-bit parameters also have a copy in float32, and the optimizer's state is in float32.
            With Adam, each number of such a parameter then takes 16 bytes: 2 for the weight, 2 for the gradient, 4 for
            the copy and 8 for the state. Under autocast, weights in float32 stay in float32.
        micro_batches: the number of equal parts into which the batch is split, so that a placement can be a pipeline.
            Their losses are averaged, and their gradients are added. The tensors of inputs and targets that are as long
            as the first one are split. One micro-batch is traced, and all have the same ops.
        run: compute the step once, on the CPU, for a module that reads the values of tensors, or whose sizes depend on
            them. The graph then has the sizes of these inputs. Parameters and inputs must have values. Of several
            micro-batches, the first one is computed, and the others have its sizes.

    Raises:
        CaptureError: the module can't be traced, nothing in it is trainable, or the loss is no scalar.
        ValueError: no such optimizer.

    >>> import torch
    >>> with torch.device("meta"):
    ...     model, x = nn.Linear(8, 4), torch.empty(2, 8)
    >>> graph = capture_training(model, [x], lambda y: y.sum(), name="linear")
    >>> [op for op in graph.op_types if "mm" in op], float(graph.flops.sum())
    (['aten.addmm', 'aten.mm'], 256.0)
    """
    name = name if name is not None else type(module).__name__
    how: dict[str, Any] = {"precision": precision, "micro_batches": micro_batches, "run": run}
    with nullcontext(module) if width == 1 else _sharded(module, parallel, width, name, run) as part:
        step = trace_training(part, inputs, loss, targets=targets, name=name, **how).step
    step = replace(step, micro_batch=with_optimizer(step.micro_batch, optimizer, master_weights))
    if optimizer_step:
        return with_optimizer_step(step.graph, step.gradients, optimizer, master_weights)
    return step.graph


def parallel_plan(module: nn.Module, plan: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Return how a module is sharded: as the given plan says, or as a model of transformers says; empty if unknown."""
    own = getattr(module, "tp_plan", None) if plan is None else plan
    return own if isinstance(own, Mapping) else {}


def _sharded(
    module: nn.Module, plan: Mapping[str, Any] | None, width: int, name: str, run: bool
) -> AbstractContextManager[nn.Module]:
    from placeto.capture.sharded_module import sharded  # torch.distributed takes a second to import

    if run:
        raise CaptureError(f"{name}: groups of {width} are captured without run: their collectives compute nothing")
    if not (plan := parallel_plan(module, plan)):
        raise CaptureError(f"{name}: the model has no parallel plan, which groups of {width} need: give parallel=...")
    return sharded(module, plan, width, name)


def trace_training(
    module: nn.Module,
    inputs: Inputs,
    loss: Callable[..., Tensor] | None = None,
    *,
    targets: Sequence[Any] = (),
    name: str | None = None,
    precision: str = "fp32",
    micro_batches: int = 1,
    run: bool = False,
) -> Capture:
    """Capture a training step as `capture_training` does, and return the graph together with the trace behind it.

    The graph has neither the optimizer's update nor the memory of the optimizer's state.

    Raises:
        CaptureError: see `capture_training`.
    """

    def step(arguments: Any, extra: Any) -> tuple[list[Tensor | None], Any]:
        with_gradient = requiring_grad(arguments, extra)  # found before the module changes its arguments
        with autocast(precision):
            output = call_module(module, arguments)
            if loss is None:
                value = own_loss(output)
            else:
                with labels.within(LOSS_MODULE, 0):
                    value = call_loss(loss, output, extra)
        del output  # tensors that only the output holds are freed before the backward pass
        if not isinstance(value, Tensor) or value.numel() != 1:
            advice = "; give a loss that makes it one" if loss is None else ""
            raise CaptureError(f"{name}: the loss must be a scalar tensor, not {describe(value)}{advice}")
        value = value if micro_batches == 1 else value / micro_batches
        labels.tag_backward(value)
        with labels.backward():
            gradients = gradients_of(value, [*trainable(), *with_gradient], str(name))
        return [value, *gradients], None

    name = name if name is not None else type(module).__name__
    check_loss(loss, name)
    labels = Labels()
    loss_modules = modules_of(loss, module) if isinstance(module, nn.Module) else {}

    def trainable() -> list[nn.Parameter]:
        parts = nn.ModuleList([module, *loss_modules.values()])
        return [parameter for parameter in parts.parameters() if parameter.requires_grad]

    def twin(memo: dict[int, Any]) -> Capture:
        its, its_loss = copy.deepcopy((module, loss), memo)
        return trace_training(its, inputs, its_loss, targets=targets, name=name, **how)

    how: dict[str, Any] = {"precision": precision, "micro_batches": micro_batches, "run": run}
    positional = module, inputs, targets, step, labels, name, "training"
    return replace(
        capture_step(*positional, loss_modules=loss_modules, loss_tensors=tensors_of(loss), **how), twin=twin
    )


def capture_inference(
    module: nn.Module,
    inputs: Inputs,
    *,
    name: str | None = None,
    precision: str = "fp32",
    micro_batches: int = 1,
    run: bool = False,
) -> ComputationGraph:
    """Graph of the forward pass in evaluation mode; the arguments are those of `capture_training`.

    Several micro-batches are parts of one batch; what the module returns for each of them is joined.

    Raises:
        CaptureError: the module can't be traced, or returns no tensor, or in micro-batches it returns a number that
            depends on the number of samples.
    """
    return trace_inference(module, inputs, name=name, precision=precision, micro_batches=micro_batches, run=run).graph


def trace_inference(
    module: nn.Module,
    inputs: Inputs,
    *,
    name: str | None = None,
    precision: str = "fp32",
    micro_batches: int = 1,
    run: bool = False,
) -> Capture:
    """Capture an inference as `capture_inference` does, and return the graph together with the trace behind it.

    Raises:
        CaptureError: see `capture_inference`.
    """

    def forward(gradients: bool, arguments: Any, extra: Any) -> tuple[list[Tensor | None], Any]:
        # on its fast path, `nn.MultiheadAttention` is one op, of which only the result could be placed or counted
        plain = meanwhile(mha.set_fastpath_enabled, False, mha.get_fastpath_enabled())
        with autocast(precision), torch.set_grad_enabled(gradients), plain:
            output = call_module(module, arguments)
        if not holds_tensors(output):
            raise CaptureError(f"{name}: the module returns no tensor but {describe(output)}")
        return [], output

    def twin(memo: dict[int, Any]) -> Capture:
        return trace_inference(copy.deepcopy(module, memo), inputs, name=name, **how)

    name = name if name is not None else type(module).__name__
    how: dict[str, Any] = {"precision": precision, "micro_batches": micro_batches, "run": run}
    modes = {m: m.training for m in module.modules()} if isinstance(module, nn.Module) else {}
    try:
        for submodule in modes:
            submodule.training = False

        def captured(gradients: bool) -> Capture:
            step = partial(forward, gradients)
            return replace(capture_step(module, inputs, (), step, Labels(), name, "inference", **how), twin=twin)

        # which ops run may depend on whether gradients are needed, as those of attention
        try:
            return captured(False)
        except CaptureError:  # as of a module that takes gradients itself
            return captured(True)
    finally:
        for submodule, training in modes.items():
            submodule.training = training
