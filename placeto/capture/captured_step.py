"""Trace a function that calls a module, and make a `Capture`: the step with the traced calls behind its ops.

Of several micro-batches, one is traced.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten

from placeto.capture.building.loss_reductions import LossWarning, other_meaning
from placeto.capture.building.names import with_names
from placeto.capture.building.ops import step_of
from placeto.capture.building.state_flow import check_flow
from placeto.capture.costing.flops import uncounted
from placeto.capture.inputs.arguments import plain
from placeto.capture.inputs.batch_dimension import batch_length, is_split, joined
from placeto.capture.inputs.input_checks import check_arguments, check_module, check_split
from placeto.capture.inputs.objects import Kept, opened
from placeto.capture.module_state.atomic_module import Whole
from placeto.capture.module_state.change_detection import ChangeDetector
from placeto.capture.step_tracer import StepTracer
from placeto.capture.tracing.draws import to_be_run
from placeto.capture.tracing.node_labels import Labels
from placeto.capture.tracing.outside_random import OutsideRandom
from placeto.capture.user_errors import NotRunWarning, explain
from placeto.errors import CaptureError, GraphError
from placeto.problem.checks import check_choice
from placeto.problem.dtypes import PRECISIONS
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.uncounted import UncountedWarning
from placeto.problem.step.micro_batches import Step


@dataclass(frozen=True, eq=False)
class Capture:
    """A step with the trace of one micro-batch that it was made from: all that is needed to run it once it is placed.

    `traced` is functional. Its inputs are the leaves of (parameters, buffers, inputs, targets), in the module's order.
    The outputs of a training step are the loss, a gradient for each trainable parameter (None if it gets none), and the
    gradients of arguments. If the step changes its arguments, their tensors follow. The outputs of an inference are the
    tensors of the arguments, if it changes these, and then the tensors that the module returns. A node that no op
    stands for is a constant, a view of an input, or not needed. `placeto.runtime.unrolled` makes the trace of all
    micro-batches.
    """

    step: Step
    traced: GraphModule
    # (N,) names of the traced nodes that each op of the micro-batch stands for: its own, then views
    nodes: tuple[tuple[str, ...], ...]
    rebuild: Callable[..., Any]  # (outputs after the gradients, arguments) -> what the module returns
    whole: Whole  # the module and those that the loss uses: their parameters and buffers are inputs of the trace
    changes: ChangeDetector
    refusal: str  # why the step can't be run, although it can be placed; "" = it can
    trained: tuple[str, ...]  # paths of the trainable parameters
    paths: tuple[str, ...]  # paths of all parameters, then of all buffers
    split: tuple[bool, ...]  # whether micro-batches split each leaf of inputs and targets; () if there is one
    twin: Callable[[dict[int, Any]], Capture] | None = None  # memo of deepcopy -> the capture of a deep copy

    @property
    def graph(self) -> ComputationGraph:
        """The graph of all micro-batches."""
        return self.step.graph

    def __reduce__(self) -> Any:
        raise TypeError(
            "a module that was captured or placed can't be pickled, what was traced belongs to this process: save the "
            "graph with placeto.save_graph, the placement with placeto.save_placement"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Capture:
        """Capture the same step of a deep copy of the module and of the loss.

        Raises:
            CaptureError: the graph of the copy's step differs from this one.
        """
        assert self.twin is not None
        copy = self.twin(memo)
        if copy.graph.hash != self.graph.hash:
            raise CaptureError(
                f"{self.graph.name}: the step of a deep copy is another than was captured, as the module was changed "
                "since, or its loss reads the module itself: change it back, or copy the module and place the copy"
            )
        return copy


def capture_step(
    module: nn.Module,
    inputs: Any,
    targets: Any,
    function: Callable[[Any, Any], tuple[list[Tensor | None], Any]],
    labels: Labels,
    name: str,
    mode: str,
    *,
    precision: str,
    micro_batches: int,
    run: bool,
    loss_modules: Mapping[str, nn.Module] = MappingProxyType({}),
    loss_tensors: Sequence[Tensor] = (),
) -> Capture:
    """Trace a function that calls the module, and return the step that it does with the trace behind the step.

    A warning names the computing ops whose FLOPs aren't counted.

    Args:
        module: the module. While the function runs, its parameters are replaced by fake tensors, or by copies if `run`.
        inputs: arguments of the module, see `capture_training`.
        targets: further arguments of the loss.
        function: takes the plain inputs and targets of a micro-batch. Returns its loss and gradients, and what the
            module returns in inference.
        labels: the labels that the function gives to what it runs.
        name: the name of the graph.
        mode: "training" or "inference".
        precision: see `capture_training`.
        micro_batches: the number of parts into which the batch is split.
        run: whether to compute the step.
        loss_modules: modules of the loss, which the function calls as well, by name.
        loss_tensors: tensors that the function reads without getting them as arguments.

    Raises:
        CaptureError: see `capture_training`.
    """
    check_arguments(inputs, targets, name)
    check_split(inputs, targets, loss_tensors, micro_batches, name)
    check_module(module, name, mode == "training")
    for key, other_module in loss_modules.items():
        check_module(other_module, f"{name}: {key}", mode == "training")
    check_choice(precision, PRECISIONS, f"{name}: precision", CaptureError)
    arguments: Any = plain(inputs), plain(targets)
    if run:
        _check_values(module, opened(arguments), name)
    length = batch_length(inputs, targets)
    kept = Kept()
    whole = Whole(module, _keeping(kept, function, micro_batches, name), loss_modules, name)
    paths = [path.removeprefix("module.") for path, _ in whole.named_parameters()]
    trained = [path.removeprefix("module.") for path, p in whole.named_parameters() if p.requires_grad]
    trained = trained if mode == "training" else []
    if mode == "training" and not trained:
        raise CaptureError(
            f"{name}: the module has no trainable parameter: set requires_grad, or capture the inference"
        )

    # trace one micro-batch, and put the module back as it was
    tracer = StepTracer(whole, loss_modules, arguments, length, micro_batches, labels, run)
    outside = OutsideRandom()
    try:
        trace = tracer.trace(kept if mode == "inference" else None)
        traced = trace.traced
        refusal = trace.refusal or outside.refusal(traced)
    except (CaptureError, KeyboardInterrupt):
        raise
    # a user's module may raise anything while it is traced: the message says what, and where
    except BaseException as error:
        hint = "" if isinstance(error, SystemExit) else _hint(inputs, targets, length, micro_batches)
        raise CaptureError(f"{name}: {explain(error, module, hint)}") from error
    finally:
        tracer.state.restore()
        outside.restore()
    buffers = [key.removeprefix("module.") for key, _ in whole.named_buffers()]

    # see whether micro-batches do what the batch does, and which of their outputs are joined
    split: list[bool] = []
    joins: list[bool] = []
    if micro_batches > 1:
        leaves = tree_flatten(opened(arguments))[0]
        split = [is_split(leaf, length) for leaf in leaves]
        placeholders = traced.graph.find_nodes(op="placeholder")
        state_nodes, argument_nodes = placeholders[: -len(split)], placeholders[-len(split) :]
        check_flow(traced, dict(zip([*paths, *buffers], state_nodes, strict=True)), len(paths), name)
        if mode == "inference":
            joins = joined(traced, list(compress(argument_nodes, split)), state_nodes, name)
        else:
            batch = dict(compress(zip(argument_nodes, leaves, strict=True), split))
            if why := other_meaning(traced, length // micro_batches, batch):
                warnings.warn(
                    f"{name}: in micro-batches, the loss isn't that of the batch: {why}", LossWarning, stacklevel=3
                )

    # make the ops of a micro-batch of the traced nodes
    tf32 = precision == "tf32"
    try:
        step, nodes = step_of(traced, paths, trained, buffers, name, mode, tf32, micro_batches, trace.calls, joins)
    except GraphError as error:
        raise CaptureError(f"{name}: {error}") from error
    if line := uncounted(step.micro_batch):
        warnings.warn(f"{name}: {line}", UncountedWarning, stacklevel=3)
    if refusal:
        warnings.warn(f"{name} can be placed, but not run: {refusal}", NotRunWarning, stacklevel=3)
    step = with_names(step, nodes, traced, module, trace.calls, inputs, paths, buffers, trace.own_gradients)

    # keep what running the step needs
    modes = [(vars(part), "training") for part in whole.modules()] if mode == "inference" else []
    changes = ChangeDetector(tracer.state, tracer.signature, trace.signature, [*trace.assigned, *modes], precision)
    to_be_run(traced)
    return Capture(
        step=step,
        traced=traced,
        nodes=nodes,
        rebuild=kept.rebuild,
        whole=whole,
        changes=changes,
        refusal=refusal,
        trained=tuple(trained),
        paths=(*paths, *buffers),
        split=tuple(split),
    )


def _keeping(
    kept: Kept, function: Callable[[Any, Any], tuple[list[Tensor | None], Any]], micro_batches: int, name: str
) -> Callable[[Any, Any], list[Tensor | None]]:
    """The function, with `kept` noting what it returns and what it makes of its arguments; returns all tensors."""

    def outputs_of(inputs: Any, targets: Any) -> list[Tensor | None]:
        arguments = inputs, targets
        kept.begin(arguments)
        outputs, returned = function(inputs, targets)
        tensors = kept.finish(arguments, returned)
        if micro_batches > 1 and kept.changed:
            raise CaptureError(
                f"{name}: forward changes a list, a dict or an object that it is given, which micro-batches don't "
                "give back: return what is new, or use micro_batches=1"
            )
        return [*outputs, *tensors]

    return outputs_of


def _hint(inputs: Any, targets: Any, length: int, micro_batches: int) -> str:
    """The shapes of what the step is given, as advice for an error that says nothing of its cause; "" without any."""
    shapes, target_shapes = _shapes(inputs), _shapes(targets)
    if not shapes:
        return ""
    hint = f"the inputs have shapes {shapes}" + (f", the targets {target_shapes}" if target_shapes else "")
    if micro_batches > 1:
        hint += f", and only tensors of length {length} are split into micro-batches"
    return hint


def _shapes(values: Any) -> str:
    leaves = tree_flatten(plain(values))[0]
    return " and ".join(str(tuple(leaf.shape)) for leaf in leaves if isinstance(leaf, Tensor))


def _check_values(module: nn.Module, arguments: Any, name: str) -> None:
    tensors = [("parameter", p) for p in module.parameters()] + [("buffer", b) for b in module.buffers()]
    tensors += [("input", leaf) for leaf in tree_flatten(arguments)[0] if isinstance(leaf, Tensor)]
    for kind, tensor in tensors:
        if tensor.is_meta:
            raise CaptureError(
                f"{name}: to be run, it needs values, and a {kind} is on the device meta: make it on the cpu"
            )
