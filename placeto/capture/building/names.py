"""Names of what a graph has no ops for: buffers, second names of weights, the module's inputs, and calling modules.

Exports need them. A device map has to name every tensor of the module, and tools that divide a module move its
inputs and buffers by rules of their own.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torch.fx import GraphModule, Node
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves

from placeto.capture.building.state_flow import depending_on_calls
from placeto.capture.costing.node_costs import CONSTANT_LIKE, nodes_read, packet_of
from placeto.capture.inputs.arguments import Inputs, plain
from placeto.capture.inputs.objects import opened
from placeto.capture.tracing.node_labels import Label
from placeto.capture.tracing.sharing import Maker
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.label_values import SHAPE, TENSORS
from placeto.problem.graph.module_paths import around, inside, unit_of
from placeto.problem.step.micro_batches import Step


def with_names(
    step: Step,
    nodes: Sequence[Sequence[str]],
    traced: GraphModule,
    module: nn.Module,
    calls: Mapping[str, int],
    inputs: Inputs,
    parameters: Sequence[str],
    buffers: Sequence[str],
    own_gradients: tuple[str, ...],
) -> Step:
    """The step with the fields of its ops from `module_tensors` to `own_gradients`.

    Args:
        step: the step of `traced`.
        nodes: names of the traced nodes behind each op, its own first.
        traced: its placeholders are parameters, buffers, the inputs, then others.
        module: the module that was traced.
        calls: path of a module -> how often it was called.
        inputs: its arguments.
        parameters: paths of the parameters.
        buffers: paths of the buffers.
        own_gradients: what makes gradients of its own.
    """
    also, first, graph = _other_names(module), len(parameters), step.micro_batch
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    own_nodes = {node.name: node for node in traced.graph.nodes}
    labels = [own_nodes[names[0]].meta["label"] for names in nodes]
    sources: dict[Node, tuple[str, str]] = {}  # placeholder -> whether it is a "tensor" or an "input", and its name
    held = placeholders[first : first + len(buffers)]
    for node, path in zip(held, buffers, strict=True):
        sources[node] = "tensor", path
    for node, name in zip(placeholders[first + len(buffers) :], _input_names(module, inputs), strict=False):
        sources[node] = "input", name
    tensors: list[dict[str, None]] = [dict.fromkeys(also.get(name, ())) for name in graph.op_names]
    arguments: list[dict[str, None]] = [{} for _ in graph.op_names]
    op_of = {node: op for op, names in enumerate(nodes) for node in names}
    # node that no op stands for -> the placeholders that it is made from, and whether of their values
    behind: dict[Node, dict[Node, bool]] = {node: {node: True} for node in sources}
    for node in traced.graph.nodes:
        if node.op != "call_function":
            continue
        read: dict[Node, bool] = {}
        for source in nodes_read(node):
            for root, values in behind.get(source, {}).items():
                read[root] = read.get(root, False) or values
        if packet_of(node) in CONSTANT_LIKE:
            read = dict.fromkeys(read, False)
        op = op_of.get(node.name)
        if op is None:
            behind[node] = read
            continue
        for source, values in read.items():
            kind, name = sources[source]
            if kind == "tensor":
                tensors[op] |= dict.fromkeys((name, *also.get(name, ())))
            elif not node.meta["label"].backward:
                arguments[op][name if values else f"{name}{SHAPE}"] = None
    unread = _add_unread(tensors, graph, module)
    graph = replace(
        graph,
        module_tensors=tuple(map(tuple, tensors)),
        module_inputs=tuple(tuple(sorted(names)) for names in arguments),
        called_in=tuple(label.callers if label.part == "forward" else () for label in labels),
        unrepeatable=_unrepeatable(calls, traced.meta["unrepeatable"] | depending_on_calls(traced, held), labels),
        shared_with=_shared_with(graph, traced, module, parameters, buffers),
        own_gradients=(own_gradients, *[()] * (graph.num_ops - 1)),
    )
    return replace(step, micro_batch=graph, unread=unread)


def _unrepeatable(
    calls: Mapping[str, int], changing: Collection[str], labels: Sequence[Label]
) -> tuple[tuple[str, ...], ...]:
    """(N,) for each op of the forward pass, the modules around its module that aren't called or whose inputs change."""
    return tuple(
        tuple(path for path in around(label.module) if not calls[path] or path in changing)
        if label.part == "forward"
        else ()
        for label in labels
    )


def _shared_with(
    graph: ComputationGraph,
    traced: GraphModule,
    module: nn.Module,
    parameters: Sequence[str],
    buffers: Sequence[str],
) -> tuple[tuple[str, ...], ...]:
    """(N,) for an op of each module that needs tensors of others themselves, the paths of these others.

    The op's own module is among them if the module is given a list or a mapping that is changed.
    Parameters aren't among these tensors: the graph says which ops read them. The arguments are those of `with_names`.
    """
    leaves = {path: not list(part.children()) for path, part in module.named_modules(remove_duplicate=False)}
    shared: dict[str, dict[Maker, None]] = traced.meta["shared"]
    nodes = [maker for makers in shared.values() for maker in makers if isinstance(maker, Node)]
    placeholders = nodes[0].graph.find_nodes(op="placeholder") if nodes else []
    weights, held = set(placeholders[: len(parameters)]), placeholders[len(parameters) :]
    owner = {node: path.rpartition(".")[0] for node, path in zip(held, buffers, strict=False)}

    def where(maker: Maker) -> list[str]:
        """Paths of modules: the value is on the device of the first of them that isn't divided."""
        if isinstance(maker, str):
            return [maker]
        paths, node = list[str](), maker
        while node.op == "call_function":
            path = node.meta["label"].module
            paths += [path] if path else []
            if unit_of(path).rpartition(".")[2].isdigit() or leaves.get(path):
                return paths
            if not node.all_input_nodes:  # it is on the device of a tensor from before it, or of an input
                paths.append("")
            node = node.all_input_nodes[0] if node.all_input_nodes else node.prev
        return [*paths, owner.get(node, "")]

    first_op, first_within = dict[str, int](), dict[str, int]()  # of a module; of a module and those inside it
    for op, part in enumerate(graph.passes):
        if part == "forward" and graph.op_types[op] not in TENSORS:
            first_op.setdefault(graph.modules[op], op)
            for path in around(graph.modules[op]):
                first_within.setdefault(path, op)
    names: list[tuple[str, ...]] = [()] * graph.num_ops
    for path, makers in shared.items():
        unit, owners = unit_of(path), dict[str, None]()
        for maker in makers.keys() - weights:
            owners |= dict.fromkeys(path_of_owner for path_of_owner in where(maker) if not inside(path_of_owner, unit))
        first = first_op.get(path, first_within.get(unit))
        if path in leaves and path and first is not None:
            own = {graph.modules[first]} if path in makers else set[str]()
            names[first] = tuple(sorted({*names[first], *owners, *own}))
    return tuple(names)


def _add_unread(tensors: list[dict[str, None]], graph: ComputationGraph, module: nn.Module) -> frozenset[str]:
    """Add the names of tensors that no op stands for or reads to a computing op, if possible of a module with tensors.

    Args:
        tensors: (N,) names of the tensors of each op; changed in place.
        graph: the graph.
        module: the module that was traced.

    Returns:
        The names that were added.
    """
    named = {name for names in tensors for name in names} | set(graph.op_names)
    paths = [path for path, _ in (*module.named_parameters(), *module.named_buffers())]
    owners = {path.rpartition(".")[0] for path in paths} - {""}
    computing = [op for op, kind in enumerate(graph.op_types) if kind not in TENSORS]
    keeper = next((op for op in computing if graph.modules[op] in owners), computing[0] if computing else 0)
    also = _other_names(module)
    unread = [name for path in paths if path not in named for name in (path, *also.get(path, ()))]
    tensors[keeper] |= dict.fromkeys(unread)
    return frozenset(unread)


def _other_names(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """First name -> the other names, for each parameter and buffer that has several names."""
    names: dict[int, list[str]] = defaultdict(list)
    for path, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        names[id(tensor)].append(path)
    return {first: tuple(others) for first, *others in names.values() if others}


def _input_names(module: nn.Module, inputs: Inputs) -> list[str]:
    """Names of the leaves of the arguments: that of the parameter of ``forward``, then the leaf's place within it."""
    try:
        positional = [
            key
            for key, parameter in inspect.signature(module.forward).parameters.items()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
    except (ValueError, TypeError):  # forward has no signature that can be read
        positional = []

    def called(path: tuple[Any, ...]) -> str:
        key = getattr(path[0], "key", None)
        if key is None:
            number = path[0].idx
            key = positional[number] if number < len(positional) else f"inputs[{number}]"
        return f"{key}{keystr(path[1:])}"

    leaves = tree_flatten_with_path(plain(inputs))[0]
    return [called(path) for path, leaf in leaves for _ in tree_leaves(opened(leaf))]
