"""Cuts a model into the stages of a pipeline that torch.distributed.pipelining (torch 2.13) runs.

`placeto export --format torch-pipeline` writes this file as pipeline_stages.py, beside run.py. It needs torch alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain
from operator import attrgetter, getitem
from types import MethodType
from typing import Any, Never
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._higher_order_ops.wrap import wrap_with_autocast, wrap_with_set_grad_enabled
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.pipelining import SplitPoint, pipeline
from torch.distributed.pipelining._IR import annotate_split_points, aten_pipe_split_alias
from torch.export.unflatten import InterpreterModule
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.checkpoint import CheckpointFunction, checkpoint

aten = torch.ops.aten
_LIKE = "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided"
# op -> the place of the tensor of which it reads the shape, the dtype or the device alone
_SHAPES: dict[Any, int] = {getattr(aten, name): 0 for name in _LIKE.split()}
_SHAPES |= {aten.type_as: 1, aten.expand_as: 1, aten.view_as: 1, aten.reshape_as: 1}
_REGIONS = wrap_with_set_grad_enabled, wrap_with_autocast


def taken_by(cut: Any) -> list[int]:
    """Return which inputs the first stage takes, in its order: torch goes by the first op that reads each of them."""
    inputs = cut.split_gm.graph.find_nodes(op="placeholder")
    first, *_ = cut.split_gm.graph.find_nodes(op="call_module")
    return [inputs.index(node) for node in first.args]


def made_by(cut: Any) -> list[int]:
    """Return which output of the last stage each tensor is that the model returns; some may be the same."""
    *_, last = cut.split_gm.graph.find_nodes(op="call_module")
    (output,) = cut.split_gm.graph.find_nodes(op="output")
    places = {last: 0} | {node: node.args[1] for node in last.users if node.target is getitem}
    return [places[node] for node in tree_flatten(output.args[0])[0]]


def without_regions(traced: Any, gradients: bool = True) -> Any:
    """Put the ops of regions of torch.no_grad(), and of autocast that is off, into the program around the regions.

    torch 2.13 would cut a module at a region. No gradient flows through ops of torch.no_grad(), as they read detached
    tensors. Regions of torch.no_grad() that change an activation stay.

    Args:
        traced: the program, or a region of it, as a GraphModule.
        gradients: whether the region computes gradients.
    """
    graph = traced.graph
    without_gradients = {*tables_of(traced), *graph.find_nodes(op="get_attr")}
    for node in list(graph.nodes):
        if node.target is wrap_with_set_grad_enabled and not (node.args[0] and not gradients):
            enabled, region, *args = node.args
        elif node.target is wrap_with_autocast and not node.args[2]:
            enabled, (region, *args) = gradients, node.args[4:]
        else:
            continue
        inner = without_regions(traced.get_submodule(region.target), enabled).graph
        if any(each.target in _REGIONS for each in inner.nodes):
            continue
        placeholders, memory = [each for each in inner.nodes if each.op == "placeholder"], _memory(inner)
        changed = {memory[value] for each in inner.nodes for value in _changed(each)}
        if (
            gradients
            and not enabled
            and any(
                placeholder in changed and not (isinstance(arg, Node) and arg in without_gradients)
                for placeholder, arg in zip(placeholders, args, strict=True)
            )
        ):
            continue  # what is read later would be detached, and get no gradient
        with graph.inserting_before(node):
            if gradients and not enabled:
                args = [_detached(graph, node, arg) if isinstance(arg, Node) else arg for arg in args]
            outputs = graph.graph_copy(inner, dict(zip(placeholders, args, strict=True)))
        for reader in list(node.users):  # each takes one of the outputs
            reader.replace_all_uses_with(outputs[reader.args[1]])
            graph.erase_node(reader)
        graph.erase_node(node)
        if not region.users:
            graph.erase_node(region)  # it would be looked for in the program around
    return traced


def _changed(node: Node) -> list[Node]:
    """Return the arguments that an op changes in place."""
    schema = getattr(node.target, "_schema", None)
    places = zip(schema.arguments, node.args, strict=False) if schema else ()
    written = [value for argument, value in places if argument.alias_info is not None and argument.alias_info.is_write]
    return [leaf for leaf in tree_flatten(written)[0] if isinstance(leaf, Node)]


def _memory(graph: Graph) -> dict[Node, Node]:
    """Return for each node the one that has made its memory: another one for views, and for ops in place."""
    made_by = dict[Node, Node]()
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        aliases = schema is not None and any(each.alias_info is not None for each in schema.returns)
        aliases |= node.target is getitem or node.target is aten.type_as.default
        made_by[node] = made_by.get(node.args[0], node) if aliases and isinstance(node.args[0], Node) else node
    return made_by


def _detached(graph: Graph, region: Node, tensor: Node) -> Node:
    found = graph.call_function(torch.ops.aten.detach.default, (tensor,))
    found.meta = {key: region.meta[key] for key in ("nn_module_stack",) if key in region.meta}
    found.meta |= {key: tensor.meta[key] for key in ("val",) if key in tensor.meta}
    return found


def with_outputs_of_last(traced: GraphModule) -> GraphModule:
    """Let the last stage make all that the model returns.

    What earlier stages make is empty in its place: torch would want gradients of it, and the loss doesn't read it, or
    `placeto export` refuses the stages. Of weights and buffers, and of inputs if there is one stage, there is a copy.
    """
    *nodes, output = traced.graph.nodes
    last = max((place for place, node in enumerate(nodes) if node.target is aten_pipe_split_alias), default=0)
    for place, node in enumerate(nodes):
        if output in node.users and (place < last or node.op != "call_function"):
            stack = dict([*nodes[-1].meta["nn_module_stack"].items()][:1])  # that of the model itself
            with traced.graph.inserting_before(output):
                if node.op == "get_attr" or not last:
                    made = traced.graph.call_function(aten.clone.default, (node,))
                    made.meta = {**node.meta, "nn_module_stack": stack}
                else:
                    made = _empty(traced.graph, node, stack)
                    made.args, made.meta["val"] = ([0], [1]), made.meta["val"].new_empty(0)
            output.replace_input_with(node, made)
    return traced


def with_own_tables(traced: GraphModule) -> GraphModule:
    """Let each stage compute itself what it reads of the stages before it, if that depends on no input and no weight.

    Such tensors are tables of positions and masks that all layers read. torch sends to the next stage only. Where an op
    reads no more than the shape of a tensor of a stage before, it gets an empty tensor.
    """
    graph, stages = traced.graph, list[list[Node]]([[]])
    for node in graph.nodes:
        stages[-1].append(node)
        if node.target is aten_pipe_split_alias:
            stages.append([])
    tables = tables_of(traced)
    while len(stages) > 1:  # the last stage first, while those before it are still as they were
        nodes, earlier = stages.pop(), dict.fromkeys(chain(*stages))
        readers = [node for node in nodes if node.op == "call_function"]
        copies = dict[Node, Node]()
        for node in _needed([source for reader in readers for source in _values(reader)], earlier, tables):
            stack = dict([*node.meta["nn_module_stack"].items()][:1])  # that of the model itself
            with graph.inserting_before(nodes[0]):
                inputs = {source: copies.get(source, source) for source in _values(node)}
                inputs |= {source: _empty(graph, source, stack) for source in _shapes(node)}
                copies[node] = made = graph.node_copy(node, inputs.__getitem__)
            made.meta["nn_module_stack"] = stack
        for node in readers:
            for source in node.all_input_nodes:
                if source in copies:
                    node.replace_input_with(source, copies[source])
                elif source in earlier and source in _shapes(node):
                    with graph.inserting_before(node):
                        node.replace_input_with(source, _empty(graph, source, node.meta["nn_module_stack"]))
    return traced


def tables_of(traced: GraphModule) -> set[Node]:
    """Return the nodes whose values are the same in each micro-batch: no input, weight or draw reaches them.

    Nodes that share memory are tables together. A buffer that is changed is none.
    """
    nodes, memory = list(traced.graph.nodes), _memory(traced.graph)
    other = {memory[node] for node in nodes if not _is_fixed(traced, node)}  # memory that has no table
    other |= {memory[value] for node in nodes for value in _changed(node) if memory[value].op == "get_attr"}
    size = -1
    while size < (size := len(other)):
        for node in nodes:
            if any(memory[value] in other for value in _values(node)):
                other |= {memory[node], *(memory[value] for value in _changed(node))}
    return {node for node in nodes if memory[node] not in other}


def _is_fixed(traced: GraphModule, node: Node) -> bool:
    """Return whether a node makes the same of the same in each micro-batch."""
    if node.op == "get_attr":
        value = attrgetter(str(node.target))(traced)
        return isinstance(value, Tensor) and not value.requires_grad
    drawn = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return node.op == "call_function" and node.target is not aten_pipe_split_alias and not drawn


def _needed(values: list[Node], earlier: dict[Node, None], tables: set[Node]) -> list[Node]:
    """Return the nodes of the stages before that a stage has to run itself for these values, in their order."""
    memory = _memory(next(iter(earlier)).graph)
    changes: dict[Node, list[Node]] = {}
    for node in earlier:
        for value in _changed(node):
            changes.setdefault(memory[value], []).append(node)
    found = set[Node]()
    while values:
        node = values.pop()
        if node in tables and node in earlier and node.op != "get_attr" and node not in found:
            found.add(node)
            values += [*_values(node), *changes.get(memory[node], ())]
    return [node for node in earlier if node in found]


def _empty(graph: Graph, like: Node, stack: dict[str, Any]) -> Node:
    value = like.meta["val"]
    layout = list(value.shape), list(value.stride())
    made = graph.call_function(aten.empty_strided.default, layout, {"dtype": value.dtype, "device": value.device})
    made.meta = {"val": value.detach(), "nn_module_stack": stack}
    return made


def _shapes(node: Node) -> set[Node]:
    """Return the tensors of which an op reads no more than shape, dtype and device."""
    place = _SHAPES.get(getattr(node.target, "overloadpacket", None))
    if place is None:
        return set()
    others = {argument for argument in node.args[:place] if isinstance(argument, Node)}
    return {argument for argument in node.args[place : place + 1] if isinstance(argument, Node)} - others


def _values(node: Node) -> list[Node]:
    """Return the tensors whose values an op reads."""
    return [source for source in node.all_input_nodes if source not in _shapes(node)]


def stages_of(model: nn.Module, tensors: list[Tensor], plan: dict[str, Any]) -> Any:
    """Cut the model into its stages, traced on the tensors of a micro-batch."""
    where = {"beginning": SplitPoint.BEGINNING, "end": SplitPoint.END}
    spec = {f"model.{module}": where[side] for module, side in plan["split_points"]}
    annotate_split_points(model, spec)
    with _plain_gradients():
        cut = pipeline(model, mb_args=tuple(tensors), split_policy=prepared)
    if cut.num_stages != len(spec) + 1:
        sys.exit(
            f"error: the model was cut into {cut.num_stages} stages, not {len(spec) + 1}: it isn't the model that was "
            "exported"
        )
    for stage in cut.split_gm.children():  # torch sends contiguous tensors alone
        graph = getattr(stage, "graph", Graph())
        for node in graph.nodes:
            ends = tree_flatten(node.args)[0] if node.op == "output" else [node] if node.op == "placeholder" else []
            for end in ends:
                if isinstance(value := end.meta.get("val"), Tensor):
                    end.meta["val"] = value.contiguous()
    check_neighbours(cut)
    called = {path for stage in cut.split_gm.children() for path in _called(stage)}
    if missing := [path for path in plan.get("recomputed", ()) if f"model.{path}" not in called]:
        sys.exit(
            f"error: {missing[0]} can't be recomputed, as it has no forward pass: its parts are called by themselves"
        )
    return cut


@contextmanager
def _plain_gradients() -> Iterator[None]:
    """A context in which what makes gradients of its own is refused: torch traces the forward pass alone.

    Activation checkpoints just run what they are given, and tensors are saved as they are.
    """

    def refuse(what: str) -> Never:
        sys.exit(
            f"error: {what} makes gradients of its own, and torch would train the stages without them: write it in ops "
            "of torch, such as x + (f(x) - x).detach() for f(x) with the gradient of x, or run replicas, not stages"
        )

    def apply(function: Any, *args: Any) -> Any:
        if function is CheckpointFunction:
            run, _, *inputs = args
            return run(*inputs)
        refuse({"BackwardHookFunction": "a backward hook"}.get(function.__name__, function.__qualname__))

    with ExitStack() as stack:
        for owner, name, made in (
            (Function, "apply", classmethod(apply)),
            (Tensor, "register_hook", lambda *_: refuse("a hook of a tensor")),
            (saved_tensors_hooks, "__enter__", lambda *_: None),
            (saved_tensors_hooks, "__exit__", lambda *_: None),
        ):
            stack.enter_context(patch.object(owner, name, made))
        yield


def prepared(traced: GraphModule) -> GraphModule:
    """Return a traced model that torch can cut into stages."""
    for node in without_regions(traced).graph.nodes:
        if node.target in _REGIONS:
            path = [*node.meta["nn_module_stack"].values()][-1][0].removeprefix("model.")
            region: Any = traced.get_submodule(node.args[1 if node.target is wrap_with_set_grad_enabled else 4].target)
            no_grad = node.target is wrap_with_set_grad_enabled
            no_grad &= all(each.target not in _REGIONS for each in region.graph.nodes)
            what = "a change of an activation in torch.no_grad()" if no_grad else "torch.autocast()"
            sys.exit(
                f"error: {path}: torch can't trace {what} within the forward pass of a model that is cut into stages: "
                "compute without it, or outside of the model"
            )
    return with_own_tables(with_outputs_of_last(traced))


def check_neighbours(cut: Any) -> None:
    """Refuse stages that read from another stage than the one before: torch would wait for ever."""
    number = {node: i for i, node in enumerate(n for n in cut.split_gm.graph.nodes if n.op == "call_module")}
    for reader, stage in number.items():
        for source in reader.all_input_nodes:
            value = source
            while value not in number and value.op != "placeholder":
                value = value.args[0]
            if number.get(value, stage if stage == 0 else -1) < stage - 1:
                sys.exit(f"error: stage {stage} reads {source}, which torch doesn't send to it: use fewer stages")


def compiled(stage: nn.Module, device: torch.device) -> None:
    """Let a stage compute on a device, and its modules run as compiled Python, not node by node."""
    for module in stage.modules():
        if isinstance(module, GraphModule | InterpreterModule):
            for node in module.graph.nodes:  # torch traced the model on the CPU
                node.args, node.kwargs = tree_map(
                    lambda value: device if isinstance(value, torch.device) else value, (node.args, node.kwargs)
                )
                if node.name == "self":  # the result of a module of this name, as in BERT of transformers
                    node._rename("of_self")
        if isinstance(module, GraphModule):
            module.recompile()
        elif isinstance(module, InterpreterModule):
            forward = type(GraphModule(module, module.graph)).forward
            module.forward = MethodType(forward, module)  # type: ignore[method-assign]


def _called(stage: nn.Module) -> list[str]:
    """Return the paths of the modules of a stage that are called, which lists of modules aren't."""
    return [
        f"{path}.{node.target}".removeprefix(".")
        for path, module in stage.named_modules()
        for node in getattr(module, "graph", Graph()).nodes
        if node.op == "call_module"
    ]


def recomputing(blocks: Iterable[nn.Module]) -> None:
    """Let blocks of a model keep their inputs alone, and compute all else again when it is needed."""
    for block in blocks:
        contexts = partial(_contexts, [*block.buffers()])
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)


def _contexts(buffers: list[Tensor]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts in which a module is run at first, and again."""
    return nullcontext(), _unchanged(buffers)


@contextmanager
def _unchanged(buffers: list[Tensor]) -> Iterator[None]:
    """A context at whose end buffers are as before, so that the statistics of norms count each micro-batch once."""
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)
