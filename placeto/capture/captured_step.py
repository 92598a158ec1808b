"""Trace a function that calls a module, and make a `Capture`: the step with the traced calls behind its ops.

Of several micro-batches, one is traced.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import compress
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from placeto.capture.building.loss_reductions import LossWarning, other_meaning
from placeto.capture.building.names import with_names
from placeto.capture.building.ops import step_of
from placeto.capture.building.state_flow import check_flow
from placeto.capture.costing.flops import uncounted
from placeto.capture.inputs.arguments import plain
from placeto.capture.inputs.batch_dimension import Sizes, batch_length, first_part, is_split, joined
from placeto.capture.inputs.input_checks import check_arguments, check_module, check_split
from placeto.capture.inputs.loss_gradients import requiring_grad
from placeto.capture.inputs.objects import Kept, closed, opened
from placeto.capture.module_state.atomic_module import Whole, keeping_tensors
from placeto.capture.module_state.attributes import Snapshot, attribute
from placeto.capture.module_state.change_detection import ChangeDetector, Signature
from placeto.capture.tracing.checkpoints import without_reentrant_checkpoints
from placeto.capture.tracing.draws import to_be_run
from placeto.capture.tracing.meanwhile import meanwhile
from placeto.capture.tracing.node_labels import Labels
from placeto.capture.tracing.outside_random import OutsideRandom
from placeto.capture.tracing.recorder import functional, mutates, record
from placeto.capture.tracing.refused_dtypes import onednn
from placeto.capture.user_errors import NotRunWarning, explain, without_logs
from placeto.errors import CaptureError, GraphError
from placeto.problem.checks import check_choice
from placeto.problem.dtypes import PRECISIONS
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.uncounted import UncountedWarning
from placeto.problem.step.micro_batches import Step

_SEED = 0  # seed of the random numbers of a step that is computed


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
    whole: Whole | None = None  # the module, and the modules that the loss uses
    changes: ChangeDetector | None = None
    refusal: str = ""  # why the step can't be run, although it can be placed; "" = it can
    trained: tuple[str, ...] = ()  # paths of the trainable parameters
    paths: tuple[str, ...] = ()  # paths of all parameters, then of all buffers
    split: tuple[bool, ...] = ()  # whether micro-batches split each leaf of inputs and targets; () if there is one
    input_gradients: int = 0  # of the arguments' tensors; they follow the gradients of the parameters
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
        made = self.twin(memo)
        if made.graph.hash != self.graph.hash:
            raise CaptureError(
                f"{self.graph.name}: the step of a deep copy is another than was captured, as the module was changed "
                "since, or its loss reads the module itself: change it back, or copy the module and place the copy"
            )
        return made

    def of(self, module: nn.Module) -> nn.Module:
        """The module whose parameters and buffers are inputs of the step when it is run for `module`.

        For the captured module it is `whole`, which has the parameters of the loss too; another is returned as it is.
        """
        return self.whole if self.whole is not None and self.whole.module is module else module


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
    others: Mapping[str, nn.Module] = MappingProxyType({}),
    held: Sequence[Tensor] = (),
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
        others: further modules that the function calls, by name.
        held: tensors that the function reads without getting them as arguments.

    Raises:
        CaptureError: see `capture_training`.
    """
    check_arguments(inputs, targets, name)
    check_split(inputs, targets, held, micro_batches, name)
    check_module(module, name, mode == "training")
    for key, other in others.items():
        check_module(other, f"{name}: {key}", mode == "training")
    check_choice(precision, PRECISIONS, f"{name}: precision", CaptureError)
    tensor = _real if run else _fake
    if run:
        _check_values(module, opened((plain(inputs), plain(targets))), name)
    arguments: Any = plain(inputs), plain(targets)
    length = batch_length(inputs, targets)
    kept = Kept()
    sizes = Sizes(kept if mode == "inference" else None)

    def outputs_of(*given: Any) -> list[Tensor | None]:
        kept.begin(given)
        outputs, returned = function(*given)
        tensors = kept.finish(given, returned)
        if micro_batches > 1 and kept.changed:
            raise CaptureError(
                f"{name}: forward changes a list, a dict or an object that it is given, which micro-batches don't "
                "give back: return what is new, or use micro_batches=1"
            )
        return [*outputs, *tensors]

    whole = Whole(module, outputs_of, others, name)
    paths = [path.removeprefix("module.") for path, _ in whole.named_parameters()]
    trained = [path.removeprefix("module.") for path, p in whole.named_parameters() if p.requires_grad]
    trained = trained if mode == "training" else []
    if mode == "training" and not trained:
        raise CaptureError(
            f"{name}: the module has no trainable parameter: set requires_grad, or capture the inference"
        )
    mode_of_torch = None if run else FakeTensorMode(allow_non_fake_inputs=True)

    def values(parts: int = micro_batches) -> Any:
        """Parameters, buffers, and a part of inputs and targets; tensors are fake ones, or copies if `run`."""
        if run:  # so that each trace draws the same numbers
            torch.random.manual_seed(_SEED)
        params = {key: tensor(p).requires_grad_(p.requires_grad) for key, p in whole.named_parameters()}
        buffers = {key: tensor(b) for key, b in whole.named_buffers()}
        given = tree_map(lambda leaf: _requiring_grad(tensor(leaf), leaf), opened(arguments))
        return params, buffers, *(given if parts == 1 else first_part(given, length, parts))

    @contextmanager
    def tracing() -> Iterator[None]:
        """All contexts in which a step is traced."""
        with ExitStack() as stack:
            for context in (
                onednn(False),
                without_logs(),
                without_reentrant_checkpoints(),
                labels.draws.following(labels.here),
                _uncompiled(),
                _unvalidated(),
                keeping_tensors(whole),
            ):
                stack.enter_context(context)
            stack.enter_context(torch.random.fork_rng(devices=[]) if mode_of_torch is None else mode_of_torch)
            yield

    def recorded(leaves: Sequence[Any], spec: Any) -> GraphModule:
        """Record the step with the flattened `values`; refuse a step that changes the shape of one."""

        def flat(*leaves: Any) -> Any:
            params, buffers, *given = tree_unflatten(leaves, spec)
            return torch.func.functional_call(whole, {**params, **buffers}, tuple(closed(given)))

        before = [_shape(leaf) for leaf in leaves]
        with torch.enable_grad(), labels.following(module), keeping_tensors(whole, names=False):
            made = record(flat, leaves, labels)
        for leaf, shape in zip(leaves, before, strict=True):
            if _shape(leaf) != shape:
                raise CaptureError(
                    f"{name}: forward changes the shape of a tensor {shape[0]} that it is given, or holds, to "
                    f"{_shape(leaf)[0]}, as by resize_, t_ or unsqueeze_: a placed step leaves shapes as they are, so "
                    "change that of a new tensor, as by reshape, t or unsqueeze"
                )
        return made

    def check_sizes() -> None:
        """Refuse micro-batches if dimension 0 isn't the batch, where a second size has to show it."""

        def call(given: Any, extra: Any) -> list[Tensor | None]:
            sizes.call(module, given)
            return []

        for parts in (1, micro_batches) if micro_batches > 1 and sizes.matter(module) else ():
            params, buffers, *leaves = values(parts)
            probe = Whole(module, call, others, name)
            torch.func.functional_call(probe, {**params, **buffers}, tuple(closed(leaves)))
            state.restore()
        sizes.check(name)

    def traced_again() -> GraphModule:
        return recorded(*tree_flatten(values()))

    def again() -> Signature:
        """Trace the step anew, and return its signature."""
        with tracing():
            return Signature.of(traced_again(), own_tensors)

    def refusal_of(changed: str) -> str:
        """Why a step whose forward changes attributes can't be run; "" if they have settled after the first step.

        The next step is traced. If it is the same, and leaves the attributes alike, then all later steps are too.
        """
        left = Snapshot(whole)
        try:
            same = Signature.of(traced_again(), own_tensors, (signature, traced.meta["tensors"])).whole
            if same == signature.whole and left.is_alike():
                return ""
        except Exception:  # whatever the module raises in its second step
            pass
        return (
            f"forward changes {changed}, on which later steps may depend: register it as a buffer that keeps its shape "
            "(self.register_buffer), or pass it in and out"
        )

    state = Snapshot(whole)
    own_tensors = state.tensors()
    outside = OutsideRandom()
    try:
        with tracing():
            check_sizes()
            traced = traced_again()
            calls, signature = labels.calls, Signature.of(traced, own_tensors)
            own = [(container, key, attribute(where, key)) for where, container, key in state.changes()]
            refusal = refusal_of(", ".join(dict.fromkeys(what for _, _, what in own))) if own else ""
            state.restore()
            check_sizes()
            if mutates(traced):
                traced = functional(traced, tree_flatten(values())[0])
        refusal = refusal or outside.refusal(traced)
    except (CaptureError, KeyboardInterrupt):
        raise
    # a user's module may raise anything while it is traced: the message says what, and where
    except BaseException as error:
        shapes, of_targets = _shapes(inputs), _shapes(targets)
        hint = f"the inputs have shapes {shapes}" + (f", the targets {of_targets}" if of_targets else "")
        hint = hint if shapes and not isinstance(error, SystemExit) else ""
        if hint and micro_batches > 1:
            hint += f", and only tensors of length {length} are split into micro-batches"
        raise CaptureError(f"{name}: {explain(error, module, hint)}") from error
    finally:
        state.restore()
        outside.restore()
    buffers = [key.removeprefix("module.") for key, _ in whole.named_buffers()]
    split: list[bool] = []
    joins: list[bool] = []
    if micro_batches > 1:
        leaves = tree_flatten(opened(arguments))[0]
        split = [is_split(leaf, length) for leaf in leaves]
        placeholders = traced.graph.find_nodes(op="placeholder")
        mine, given = placeholders[: -len(split)], placeholders[-len(split) :]
        check_flow(traced, dict(zip([*paths, *buffers], mine, strict=True)), len(paths), name)
        if mode == "inference":
            joins = joined(traced, list(compress(given, split)), mine, name)
        elif why := other_meaning(
            traced, length // micro_batches, dict(compress(zip(given, leaves, strict=True), split))
        ):
            warnings.warn(
                f"{name}: in micro-batches, the loss isn't that of the batch: {why}", LossWarning, stacklevel=3
            )
    how = name, mode, precision == "tf32", micro_batches, calls, joins
    try:
        step, nodes = step_of(traced, paths, trained, buffers, *how)
    except GraphError as error:
        raise CaptureError(f"{name}: {error}") from error
    if line := uncounted(step.micro_batch):
        warnings.warn(f"{name}: {line}", UncountedWarning, stacklevel=3)
    if refusal:
        warnings.warn(f"{name} can be placed, but not run: {refusal}", NotRunWarning, stacklevel=3)
    modes = [(vars(part), "training") for part in whole.modules()] if mode == "inference" else []
    free = [*((container, key) for container, key, _ in own), *modes]
    changes = ChangeDetector(state, again, signature, free, precision)
    step = with_names(step, nodes, traced, module, inputs, paths, buffers)
    to_be_run(traced)
    return Capture(
        step,
        traced,
        nodes,
        kept.rebuild,
        whole,
        changes,
        refusal,
        tuple(trained),
        (*paths, *buffers),
        tuple(split),
        len(requiring_grad(*map(plain, (inputs, targets)))) if mode == "training" else 0,
    )


def _fake(value: Any) -> Any:
    """A tensor of the same layout on the CPU, fake in a `FakeTensorMode`; other values are returned as they are.

    Fake tensors on "cuda" would abort a build of torch without CUDA.
    """
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")


def _shapes(values: Any) -> str:
    leaves = tree_flatten(plain(values))[0]
    return " and ".join(str(tuple(leaf.shape)) for leaf in leaves if isinstance(leaf, Tensor))


def _shape(value: Any) -> tuple[Any, ...]:
    return (tuple(value.shape), value.stride()) if isinstance(value, Tensor) else ()


def _requiring_grad(traced: Any, given: Any) -> Any:
    """The traced stand-in of a given value, made to require a gradient if the given tensor does."""
    return traced.requires_grad_() if isinstance(given, Tensor) and given.requires_grad else traced


def _real(value: Any) -> Any:
    """A copy of a tensor on the CPU, which a step may change without changing the module; other values unchanged."""
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def _check_values(module: nn.Module, arguments: Any, name: str) -> None:
    tensors = [("parameter", p) for p in module.parameters()] + [("buffer", b) for b in module.buffers()]
    tensors += [("input", leaf) for leaf in tree_flatten(arguments)[0] if isinstance(leaf, Tensor)]
    for what, tensor in tensors:
        if tensor.is_meta:
            raise CaptureError(
                f"{name}: to be run, it needs values, and a {what} is on the device meta: make it on the cpu"
            )


def _uncompiled() -> AbstractContextManager[Any]:
    """A context in which compiled functions run uncompiled. It doesn't import the compiler if nothing else has."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _unvalidated() -> AbstractContextManager[None]:
    """A context in which torch.distributions check their parameters' values only if `validate_args` is given."""
    kind = torch.distributions.Distribution
    return meanwhile(kind.set_default_validate_args, False, kind._validate_args)
