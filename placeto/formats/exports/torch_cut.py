"""Cuts a model into the stages of a pipeline that torch.distributed.pipelining (torch 2.13) runs.

`placeto export --format torch-pipeline` writes this file as pipeline_stages.py, beside run.py. It needs torch alone.
"""

from __future__ import annotations

import sys
from functools import partial
from operator import attrgetter, getitem
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.wrap import wrap_with_autocast, wrap_with_set_grad_enabled
from torch.distributed.pipelining import SplitPoint, pipeline
from torch.distributed.pipelining._IR import annotate_split_points, aten_pipe_split_alias
from torch.export.unflatten import InterpreterModule
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.checkpoint import checkpoint

_REGIONS = wrap_with_set_grad_enabled, wrap_with_autocast


def taken_by(cut: Any) -> list[bool]:
    """Return for each input whether the first stage takes it: torch leaves out inputs that no op reads."""
    return [bool(node.users) for node in cut.split_gm.graph.nodes if node.op == "placeholder"]


def without_regions(traced: Any, gradients: bool = True) -> Any:
    """Put the ops of regions of torch.no_grad(), and of autocast that is off, into the program around the regions.

    torch 2.13 would cut a module at a region. No gradient flows through ops of torch.no_grad(), as they read detached
    tensors. Regions of torch.no_grad() that change an activation stay.

    Args:
        traced: the program, or a region of it, as a GraphModule.
        gradients: whether the region computes gradients.
    """
    graph = traced.graph
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
        placeholders = [each for each in inner.nodes if each.op == "placeholder"]
        if (
            gradients
            and not enabled
            and any(
                placeholder in _written(inner) and not (isinstance(arg, Node) and arg.op == "get_attr")
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
    return traced


def _written(graph: Graph) -> set[Node]:
    """Return the inputs of a region that its ops change in place, themselves or through views."""
    found = set[Node]()
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        for argument, value in zip(schema.arguments, node.args, strict=False) if schema else ():
            if argument.alias_info is not None and argument.alias_info.is_write:
                while isinstance(value, Node) and value.op == "call_function" and _is_alias(value):
                    value = value.args[0]
                if isinstance(value, Node):
                    found.add(value)
    return found


def _is_alias(node: Node) -> bool:
    """Return whether the result of an op shares the memory of its first argument, as a view or an op in place does."""
    if node.target is getitem:
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(each.alias_info is not None for each in schema.returns)


def _detached(graph: Graph, region: Node, tensor: Node) -> Node:
    found = graph.call_function(torch.ops.aten.detach.default, (tensor,))
    found.meta = {key: region.meta[key] for key in ("nn_module_stack",) if key in region.meta}
    found.meta |= {key: tensor.meta[key] for key in ("val",) if key in tensor.meta}
    return found


def with_own_tables(traced: GraphModule) -> GraphModule:
    """Let each stage compute itself what it reads of the stages before it, if that depends on no input and no weight.

    Such tensors are tables of positions and masks that all layers read. torch sends to the next stage only.
    """
    graph, stage, now = traced.graph, dict[Node, int](), 0
    begins = dict[int, Node]()  # the first node of each stage
    for node in graph.nodes:
        begins.setdefault(now, node)
        stage[node] = now
        now += node.target is aten_pipe_split_alias
    tables, copies = _tables(traced), dict[tuple[Node, int], Node]()

    def own(node: Node, number: int) -> Node:
        """Return the node that computes a table in a stage."""
        if node.op == "get_attr" or stage[node] == number:
            return node
        if (node, number) not in copies:
            inputs = {each: own(each, number) for each in node.all_input_nodes}
            with graph.inserting_before(begins[number]):
                copies[node, number] = made = graph.node_copy(node, inputs.__getitem__)
            made.meta["nn_module_stack"] = dict([*node.meta["nn_module_stack"].items()][:1])  # the model itself
        return copies[node, number]

    for node in list(stage):
        if node.op == "call_function":
            for source in node.all_input_nodes:
                if source in tables:
                    node.replace_input_with(source, own(source, stage[node]))
    return traced


def _tables(traced: GraphModule) -> set[Node]:
    """Return the nodes whose values are the same in each micro-batch: no input, weight, draw or change reaches them."""
    found, changed = set[Node](), set[Node]()
    for node in traced.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        for argument, value in zip(schema.arguments, node.args, strict=False) if schema else ():
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Node):
                changed.add(value)
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            value = attrgetter(node.target)(traced)
            fixed = isinstance(value, Tensor) and not value.requires_grad
        else:
            tags = getattr(node.target, "tags", ())
            fixed = node.op == "call_function" and node.target is not aten_pipe_split_alias
            fixed &= torch.Tag.nondeterministic_seeded not in tags and found.issuperset(node.all_input_nodes)
        if fixed:
            found.add(node)
    pending = list(changed)
    while pending:  # a change of a tensor is one of all that it may be a view of, or that may be a view of it
        node = pending.pop()
        if node in found:
            found.remove(node)
            pending += [*node.all_input_nodes, *node.users]
    return found


def stages_of(model: nn.Module, tensors: list[Tensor], plan: dict[str, Any]) -> Any:
    """Cut the model into its stages, traced on the tensors of a micro-batch."""
    where = {"beginning": SplitPoint.BEGINNING, "end": SplitPoint.END}
    spec = {f"model.{module}": where[side] for module, side in plan["split_points"]}
    annotate_split_points(model, spec)
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
    return cut


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
    return with_own_tables(traced)


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


def recomputing(stage: nn.Module, modules: list[str]) -> None:
    """Let those of the modules that are in a stage keep their inputs alone, and compute all else again when needed."""
    for path, module in stage.named_modules():
        if path.removeprefix("model.") in modules:
            module.forward = partial(checkpoint, module.forward, use_reentrant=False)
