"""Sums of gradients over micro-batches, as a schedule has them: what they add, on which device.

A trace adds the gradients of the micro-batches in a chain. A schedule first adds those of each device: see
`placeto.simulator.lowering`. As PyTorch adds to ``.grad`` in place, an addition overwrites its first term, if nothing
else needs that.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.passes.tools_common import stable_topological_sort

from placeto.capture.building.ops import is_view
from placeto.capture.trace import Capture
from placeto.problem.cluster import Cluster, Device
from placeto.problem.costs import ROOFLINE
from placeto.problem.dispatch import order_of_lists
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import gradient_sums
from placeto.problem.problem import PlacementProblem
from placeto.runtime.unrolled import unrolled
from placeto.simulator.schedule import Schedule, simulate


def as_scheduled(capture: Capture, schedule: Schedule) -> Capture:
    """Return an unrolled capture with sums that add what the schedule says; nodes of sums come after what they add."""
    problem, capture = schedule.problem, unrolled(capture)
    sums = gradient_sums(problem.graph)
    if not len(sums.home):
        return capture
    nodes = {node.name: node for node in capture.traced.graph.nodes}
    graph, read = problem.graph, schedule.edge_tensor
    for number, home in enumerate(sums.home.tolist()):
        addends = slice(sums.ptr[number], sums.ptr[number + 1])
        parts, (_, *ops) = sums.tensor[addends].tolist(), sums.addition[addends].tolist()
        chain = [nodes[capture.nodes[op][0]] for op in ops]
        # the node of each tensor: the chain begins with the first part, and each op of it adds the next one
        behind = dict(zip(parts, [chain[0].args[0], *(node.args[1] for node in chain)], strict=True))
        behind |= dict(zip(graph.output_ptr[ops].tolist(), chain, strict=True))
        for op, node in zip([*ops, home], [*chain, nodes[capture.nodes[home][0]]], strict=True):
            node.args = tuple(behind[tensor] for tensor in read[graph.input_ptr[op] : graph.input_ptr[op + 1]].tolist())
        for node in chain:
            if _may_be_overwritten(cast(Node, node.args[0]), node):
                node.target = torch.ops.aten.add_.Tensor
    stable_topological_sort(capture.traced)
    return capture


def in_lists(graph: ComputationGraph, placement: np.ndarray, lists: Sequence[Sequence[int] | np.ndarray]) -> Schedule:
    """Return the schedule of a placement (N,) on devices of one host, each with a list of ops; its times mean nothing.

    Raises:
        PlacementError: the lists contradict the graph or each other.
    """
    devices = tuple(Device(f"device:{number}", "unknown", 1e12, 1e12, 1 << 40) for number in range(len(lists)))
    links = np.ones((len(lists), len(lists)))
    problem = PlacementProblem(graph, Cluster("unknown", devices, links, 0.0 * links), ROOFLINE)
    return simulate(problem, placement, order=order_of_lists(graph, [list(ops) for ops in lists]))


def _may_be_overwritten(total: Node, user: Node) -> bool:
    """Whether the first term `total` of an addition `user` has memory of its own, which nothing else needs."""
    while set(total.users) == {user} and total.op == "call_function" and _has_own_memory(total.meta["val"]):
        if not is_view(total.target):
            return total.target is not operator.getitem or not is_view(total.all_input_nodes[0].target)
        user, total = total, total.all_input_nodes[0]
    return False


def _has_own_memory(layout: Tensor) -> bool:
    """Whether a tensor is as large as its storage, so that it has each number of the storage once."""
    return layout.untyped_storage().nbytes() == layout.numel() * layout.element_size()
