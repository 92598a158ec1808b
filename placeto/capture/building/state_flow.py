"""What a step writes to buffers and parameters, and whether the next micro-batch would depend on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.fx import GraphModule, Node

from placeto.capture.costing.node_costs import CONSTANT_LIKE, packet_of
from placeto.capture.tracing.dependencies import reached
from placeto.capture.tracing.statistics import FUNCTIONAL, STATISTICS, statistics, updates_of
from placeto.errors import CaptureError
from placeto.problem.graph.module_paths import around

aten = torch.ops.aten
_OVERWRITES = {aten.copy, aten.fill, aten.zero}  # ops that read only the shape of their first argument


def check_flow(traced: GraphModule, tensors: Mapping[str, Node], parameters: int, name: str) -> None:
    """Refuse a step in micro-batches if what one of them writes to the module decides what the next one computes.

    Running statistics and counters may be updated: the old values are read for that, but neither the loss, nor a
    gradient, nor an output depends on them.

    Args:
        traced: one micro-batch; ``meta["values"]`` has the places of the inputs whose values Python has read.
        tensors: path of each parameter, then of each buffer -> its placeholder; the first ones of the trace.
        parameters: how many of them are parameters.
        name: the name of the graph, for messages.

    Raises:
        CaptureError: a tensor is read in such a way, or is a parameter that is written.
    """
    changed = _changed(traced)
    for place, (path, node) in enumerate(tensors.items()):
        if node in changed and (place < parameters or place in traced.meta["values"] or changed[node]):
            raise CaptureError(
                f"{name}: forward changes {path!r}, on which the next micro-batch would depend: change it outside of "
                "forward, or use micro_batches=1"
            )


def depending_on_calls(traced: GraphModule, buffers: Sequence[Node]) -> set[str]:
    """Return the paths of modules that compute or keep something else if they are called twice: they change buffers.

    Running statistics of batch norms don't count, nor integers such as counters, unless the step depends on them.

    Args:
        traced: one micro-batch, functional.
        buffers: their placeholders.
    """
    changed, found = _changed(traced), set[str]()
    for node in buffers:
        counted = any(node in statistics(user) for user in node.users) or not node.meta["val"].is_floating_point()
        if node in changed and (changed[node] or not counted):
            users = (user for user in node.users if user.op == "call_function")
            found |= {path for user in users for path in around(user.meta["label"].module)}
    return found


def _changed(traced: GraphModule) -> dict[Node, bool]:
    """Each input that a step changes -> whether what the step returns depends on the values that it had."""
    outputs = set[Node](traced.graph.find_nodes(op="output"))
    changed = {update.input for update in updates_of(traced)}
    changed |= {node for norm in traced.graph.nodes for node in statistics(norm)}
    return {node: any(each in outputs for each in reached([node], _dependent)) for node in changed}


def _dependent(node: Node) -> list[Node]:
    """The nodes that depend on the values of a node: the output of a batch norm doesn't depend on its statistics."""
    dependents: list[Node] = []
    for user in node.users:
        packet = packet_of(user)
        if packet in CONSTANT_LIKE or (packet in _OVERWRITES and node not in user.args[1:]):
            continue
        if node not in statistics(user):
            dependents.append(user)
        elif user.target is FUNCTIONAL:  # it returns the new statistics last
            dependents += [item for item in user.users if item.args[1] >= STATISTICS.start]  # type: ignore[operator]
    return dependents
