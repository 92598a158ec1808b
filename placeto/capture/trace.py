"""Capture the computation graph of a `torch.nn.Module`: a training step, or inference.

The module is traced on fake tensors: nothing is computed and nothing is allocated, so a model far larger
than the machine can be captured, best built under ``torch.device("meta")``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from placeto.capture.arguments import Inputs, call_module, own_loss, plain
from placeto.capture.costs import DECOMPOSITIONS
from placeto.capture.errors import CaptureError, call_loss, explain, without_logs
from placeto.capture.micro_batches import accumulated, check_split, split_batch
from placeto.capture.ops import Label, computation_graph
from placeto.capture.precision import autocast
from placeto.problem.dtypes import PRECISIONS
from placeto.problem.fields import choice
from placeto.problem.graph import ComputationGraph, GraphError
from placeto.problem.graph_memory import DEFAULT_OPTIMIZER, with_optimizer

LOSS_MODULE = "loss"  # module path of the ops of the loss function


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
    rebuild: Callable[[Sequence[Any]], Any]  # from the outputs of inference, what the module returns


def capture_training(
    module: nn.Module,
    inputs: Inputs,
    loss: Callable[..., Tensor] | None = None,
    *,
    targets: Sequence[Any] = (),
    name: str | None = None,
    precision: str = "fp32",
    optimizer: str = DEFAULT_OPTIMIZER,
    micro_batches: int = 1,
) -> ComputationGraph:
    """Graph of one training step: forward pass, loss and the gradients of all trainable parameters.

    The optimizer's update is not part of it, but the memory of its state is. Costs are FLOPs of matrix products and
    convolutions, and bytes read and written by every op. A parameter is an op of no cost whose output is the weight:
    whichever other device uses the weight is sent a copy. Inputs, targets, buffers and constants are taken to be on
    every device. Views cost nothing: one as large as its tensor is left out, a smaller one (a slice) is an op of no
    cost colocated with its producer, so that only the slice travels. The two gradients of a convolution, one op in
    PyTorch, are two here, as those of a matrix product are: the weight's holds up nobody who waits for the input's.

    A parameter is colocated with its first user, and with the op that makes its gradient (the last sum if it is one):
    the optimizer, which isn't in the graph, needs the gradient where the weight is. Both are resident memory, charged
    with the parameter, and no live tensors. Frozen parameters and buffers have no gradient and no optimizer state.

    Activations that a checkpoint computes again, and whatever else in the backward pass could start early, wait for
    the gradient that they serve: for an output of no bytes.

    Args:
        module: parameters on any device, "meta" included; it is left as it was.
        inputs: arguments of the module, in a sequence or by name in a mapping; tensors, or nests of them, on any
            device.
        loss: ``loss(output, *targets)`` -> scalar; None if the module itself returns the scalar loss, or something
            whose ``.loss`` or ``["loss"]`` it is, as the models of Hugging Face do where they are given labels.
        targets: further arguments of the loss.
        name: of the graph; the class of the module by default.
        precision: what the run will use: "fp32", the dtypes as they are; "tf32", for float32 matrix products and
            convolutions; "bf16" or "fp16", as a GPU's autocast would run it.
        optimizer: which decides what each trained parameter takes beside its gradient; one of `OPTIMIZERS`.
        micro_batches: into how many parts to split the batch, whose losses are averaged and whose gradients are added,
            so that a placement is a pipeline. Split are the tensors of inputs and targets as long as the first one.

    Raises:
        CaptureError: the module can't be traced, nothing in it is trainable, or the loss is no scalar.
        ValueError: no such optimizer.

    >>> with torch.device("meta"):
    ...     model, x = nn.Linear(8, 4), torch.empty(2, 8)
    >>> graph = capture_training(model, [x], lambda y: y.sum(), name="linear")
    >>> [op for op in graph.op_types if "mm" in op], float(graph.flops.sum())
    (['aten.addmm', 'aten.mm'], 256.0)
    """
    traced = trace_training(
        module, inputs, loss, targets=targets, name=name, precision=precision, micro_batches=micro_batches
    )
    return with_optimizer(traced.graph, optimizer)


def trace_training(
    module: nn.Module,
    inputs: Inputs,
    loss: Callable[..., Tensor] | None = None,
    *,
    targets: Sequence[Any] = (),
    name: str | None = None,
    precision: str = "fp32",
    micro_batches: int = 1,
) -> Capture:
    """As `capture_training`, with the trace that the graph stands for.

    Raises:
        CaptureError: see `capture_training`.
    """

    def step(arguments: Any, extra: Any) -> list[Tensor | None]:
        if micro_batches == 1:
            return part(arguments, extra, 0)
        parts = split_batch(arguments, extra, micro_batches)
        return accumulated([part(*values, number) for number, values in enumerate(parts)])

    def part(arguments: Any, extra: Any, number: int) -> list[Tensor | None]:
        with autocast(precision):
            output = call_module(module, arguments)
            if loss is None:
                value = own_loss(output)
            else:
                with traceback.annotate({"module": LOSS_MODULE, "call": number}):
                    value = call_loss(loss, output, extra)
        if not isinstance(value, Tensor) or value.numel() != 1:
            advice = "; give a loss that makes it one" if loss is None else ""
            raise CaptureError(f"{name}: the loss must be a scalar tensor, not {_describe(value)}{advice}")
        if not value.requires_grad:
            raise CaptureError(f"{name}: the loss doesn't depend on any trainable parameter")
        value = value if micro_batches == 1 else value / micro_batches
        _tag_backward(value)
        trainable = [p for p in module.parameters() if p.requires_grad]
        with traceback.annotate({"backward": True}):
            gradients = torch.autograd.grad(value.reshape(()), trainable, allow_unused=True)
        return [value, *gradients]

    name = name if name is not None else type(module).__name__
    _check_loss(loss, name)
    check_split(inputs, targets, micro_batches, name)
    return _capture(module, inputs, targets, step, name, "training", precision)


def capture_inference(
    module: nn.Module, inputs: Inputs, *, name: str | None = None, precision: str = "fp32"
) -> ComputationGraph:
    """Graph of the forward pass in evaluation mode; see `capture_training` for the rest.

    Raises:
        CaptureError: the module can't be traced, or returns no tensor.
    """
    return trace_inference(module, inputs, name=name, precision=precision).graph


def trace_inference(module: nn.Module, inputs: Inputs, *, name: str | None = None, precision: str = "fp32") -> Capture:
    """As `capture_inference`, with the trace that the graph stands for.

    Raises:
        CaptureError: see `capture_inference`.
    """

    def forward(arguments: Any, extra: Any) -> list[Tensor | None]:
        with autocast(precision):
            output = call_module(module, arguments)
        leaves, returned["spec"] = tree_flatten(output)
        returned["leaves"] = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        tensors: list[Tensor | None] = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        returned["where"] = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        if not tensors:
            raise CaptureError(f"{name}: the module returns no tensor but {_describe(output)}")
        return tensors

    def rebuild(tensors: Sequence[Any]) -> Any:
        leaves = list(returned["leaves"])
        for i, tensor in zip(returned["where"], tensors, strict=True):
            leaves[i] = tensor
        return tree_unflatten(leaves, returned["spec"])

    returned: dict[str, Any] = {}

    name = name if name is not None else type(module).__name__
    modes = {m: m.training for m in module.modules()} if isinstance(module, nn.Module) else {}
    try:
        for submodule in modes:
            submodule.training = False
        return replace(_capture(module, inputs, (), forward, name, "inference", precision), rebuild=rebuild)
    finally:
        for submodule, training in modes.items():
            submodule.training = training


class _Step(nn.Module):
    """A function of a module, as a module: its parameters can be swapped for fakes until the function returns."""

    def __init__(self, module: nn.Module, function: Callable[..., list[Tensor | None]]) -> None:
        super().__init__()
        self.module = module
        self.function = function

    def forward(self, arguments: Any, extra: Any) -> list[Tensor | None]:
        return self.function(arguments, extra)


def _capture(
    module: nn.Module,
    inputs: Any,
    targets: Any,
    function: Callable[..., list[Tensor | None]],
    name: str,
    mode: str,
    precision: str,
) -> Capture:
    _check_module(module, name)
    choice(*PRECISIONS)(precision, f"{name}: precision", CaptureError)
    for what, values in (("inputs", inputs), ("targets", targets)):
        named = what == "inputs" and isinstance(values, Mapping)
        if isinstance(values, str | Tensor) or not (named or isinstance(values, Sequence)):
            raise CaptureError(f"{name}: {what} must be a sequence of arguments, such as [x], not {_describe(values)}")
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    with ExitStack() as stack:
        stack.enter_context(_without_onednn())
        stack.enter_context(without_logs())
        stack.enter_context(fake_mode)
        whole = _Step(module, function)
        params = {key: _fake(p).requires_grad_(p.requires_grad) for key, p in whole.named_parameters()}
        buffers = {key: _fake(b) for key, b in whole.named_buffers()}

        def run(params: dict[str, Tensor], buffers: dict[str, Tensor], arguments: Any, extra: Any) -> Any:
            return torch.func.functional_call(whole, {**params, **buffers}, (arguments, extra))

        arguments = (params, buffers, *(tree_map(_fake, plain(values)) for values in (inputs, targets)))
        trained = [key for key, p in params.items() if p.requires_grad] if mode == "training" else []
        if mode == "training" and not trained:
            raise CaptureError(f"{name}: the module has no trainable parameter")
        stack.enter_context(traceback.preserve_node_meta())
        stack.enter_context(_module_labels(module))
        try:
            with torch.enable_grad():
                traced = make_fx(run, decomposition_table=DECOMPOSITIONS)(*arguments)
            _write_labels(traced)
            leaves = tree_flatten(arguments)[0]
            if any(_mutates(node) for node in traced.graph.nodes):
                interpreter = Interpreter(traced)
                flat = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
                traced = make_fx(torch.func.functionalize(lambda *values: interpreter.run(*values)))(*flat)
        except CaptureError:
            raise
        # whatever a user's module raises while it's traced, the reader wants to know that, and where
        except (Exception, SystemExit) as error:
            leaves = tree_flatten((plain(inputs), plain(targets)))[0]
            shapes = " and ".join(str(tuple(leaf.shape)) for leaf in leaves if isinstance(leaf, Tensor))
            hint = f"the tensors given have shapes {shapes}" if shapes and not isinstance(error, SystemExit) else ""
            raise CaptureError(f"{name}: {explain(error, module, hint)}") from error
    paths, trained = ([key.removeprefix("module.") for key in keys] for keys in (params, trained))
    try:
        graph, nodes = computation_graph(traced, paths, trained, len(buffers), name, mode, precision == "tf32")
    except GraphError as error:
        raise CaptureError(f"{name}: {error}") from error
    return Capture(graph, traced, nodes, list)


def _check_module(module: object, name: str) -> None:
    if not isinstance(module, nn.Module):
        raise CaptureError(f"{name}: a torch.nn.Module can be captured, not {_describe(module)}")
    for path, part in module.named_modules():
        where = f"{name}: module {path!r} ({type(part).__name__})" if path else f"{name}: the module"
        if isinstance(part, torch.jit.ScriptModule):
            raise CaptureError(f"{where} is scripted: give the module that went into torch.jit.script or trace")
        if type(part).__name__ == "OptimizedModule":
            raise CaptureError(f"{where} is compiled: give the module that went into torch.compile")
        if any(nn.parameter.is_lazy(p) for p in (*part.parameters(recurse=False), *part.buffers(recurse=False))):
            raise CaptureError(
                f"{where} has parameters of unknown shape: call the whole module once on its inputs before"
            )


def _check_loss(loss: object, name: str) -> None:
    if isinstance(loss, type):
        raise CaptureError(f"{name}: the loss is the class {loss.__name__}: give an instance, {loss.__name__}()")
    if loss is not None and not callable(loss):
        advice = "; targets go into targets=[...]" if isinstance(loss, Tensor) else ""
        raise CaptureError(f"{name}: the loss must be a function of the module's output, not {_describe(loss)}{advice}")


def _describe(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}: give an instance, {value.__name__}(...)"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _fake(value: Any) -> Any:
    """A fake tensor on the cpu of the same layout (fakes on "cuda" abort a build of torch without CUDA)."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")


@contextmanager
def _without_onednn() -> Iterator[None]:
    """With oneDNN, `nn.LSTM` on the cpu is a single op."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


@contextmanager
def _module_labels(module: nn.Module) -> Iterator[None]:
    """While this is open, traced nodes are annotated with the path of their module and the number of its call."""
    calls: Counter[str] = Counter()
    opened: list[AbstractContextManager[None]] = []

    def enter(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any) -> None:
            opened.append(traceback.annotate({"module": path, "call": calls[path]}))
            opened[-1].__enter__()
            calls[path] += 1

        return hook

    def leave(module: nn.Module, arguments: Any, output: Any) -> None:
        opened.pop().__exit__(None, None, None)

    handles = []
    for path, submodule in module.named_modules():
        handles.append(submodule.register_forward_pre_hook(enter(path), prepend=True))
        handles.append(submodule.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        while opened:  # modules that were left by other ways than an exception
            opened.pop().__exit__(None, None, None)


def _tag_backward(loss: Tensor) -> None:
    """Make every node traced in an op's backward carry the sequence number of that op's forward."""
    opened: list[AbstractContextManager[None]] = []

    def before(number: int) -> Callable[[Any], None]:
        def hook(gradients: Any) -> None:
            opened.append(traceback.annotate({"number": number}))
            opened[-1].__enter__()

        return hook

    def after(inputs: Any, outputs: Any) -> None:
        opened.pop().__exit__(None, None, None)

    seen: set[Any] = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        node.register_prehook(before(node._sequence_nr()))
        node.register_hook(after)
        stack.extend(parent for parent, _ in node.next_functions)


def _write_labels(traced: GraphModule) -> None:
    """Put a `Label` on every node: backward nodes take over the module and call of their forward op."""
    by_number: dict[int, Label] = {}
    labels: dict[Any, Label] = {}
    for node in traced.graph.nodes:
        custom = node.meta.get("custom") or {}
        if "module" in custom or not custom.get("backward"):  # in the backward pass: a checkpoint, run again
            label = Label(custom.get("module", ""), custom.get("call", 0), bool(custom.get("backward")))
            if node.op == "call_function" and not label.backward:
                by_number.setdefault(node.meta.get("seq_nr", -1), label)
        elif custom.get("number") in by_number:
            label = replace(by_number[custom["number"]], backward=True)
        else:  # the gradients of a tensor used twice are added between two backwards: goes with the later one
            inputs = [labels[source] for source in node.all_input_nodes]
            label = replace(inputs[-1] if inputs else Label(), backward=True)
        labels[node] = label
        node.meta["custom"] = {"label": label}


def _mutates(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable
