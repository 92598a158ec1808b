"""Buffers that a step changes.

A device with memory of its own changes copies of them. If a step fails, its changes are undone, and the buffers are
left as the module itself would have left them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from placeto.capture.tracing.dependencies import needed_by
from placeto.runtime.program import Program, training_norms

_RUNNING, _MOMENTUM = slice(3, 5), 6  # places of arguments of a batch norm


class State:
    """The inputs that a traced step changes.

    Args:
        traced: the step, functional except for the statistics of batch norms.
        updates: pairs of an input and a value that is copied into it at the end.
    """

    def __init__(self, traced: GraphModule, updates: Sequence[tuple[Node, Node]]) -> None:
        self.nodes = list(traced.graph.nodes)
        self.updates = list(updates)
        self.places = {node: place for place, node in enumerate(n for n in self.nodes if n.op == "placeholder")}
        self._norms = training_norms(self.nodes)
        statistics = dict.fromkeys(arg for node in self._norms for arg in node.args[_RUNNING])
        self._changed = [self.places[arg] for arg in statistics if isinstance(arg, Node) and arg in self.places]
        self._by_place = {
            place: {node for node in self._norms if any(self.places.get(arg) == place for arg in node.args[_RUNNING])}
            for place in self._changed
        }

    def shared(self, leaves: Sequence[Any]) -> tuple[int, int] | None:
        """Return the places of a tensor that the step changes and of one that shares its memory; None without such."""
        changed = {*self._changed, *(self.places[buffer] for buffer, _ in self.updates)}
        if not changed:
            return None
        spans = {place: _span(leaves[place]) for node, place in self.places.items() if node.users}
        for changed_place in sorted(changed):
            device, first, end = spans[changed_place]
            for other_place, (its_device, its_first, its_end) in spans.items():
                if other_place != changed_place and its_device == device and first < its_end and its_first < end:
                    return changed_place, other_place
        return None

    def save(self, leaves: Sequence[Any]) -> list[Tensor]:
        """Return copies of the buffers that ops change while the step runs."""
        return [leaves[place].clone() for place in self._changed]

    def apart(
        self, leaves: Sequence[Any], copies: Sequence[list[Any]], calls: Sequence[Collection[Node]]
    ) -> list[list[Any]]:
        """Return the leaves of each device, with copies of the statistics that several devices change.

        In shared memory, the result would depend on which device comes first.

        Args:
            leaves: the buffers among them.
            copies: for each device its own leaves.
            calls: for each device the calls that it makes.
        """
        separate = [list(local) for local in copies]
        for place in self._changed:
            norms = self._by_place[place]
            changing = [local for local, run in zip(separate, calls, strict=True) if not norms.isdisjoint(run)]
            for local in changing if len(changing) > 1 else ():
                local[place] = local[place].clone() if local[place] is leaves[place] else local[place]
        return separate

    def gather(
        self, leaves: Sequence[Any], before: Sequence[Tensor], copies: Sequence[tuple[Sequence[Any], Collection[Node]]]
    ) -> None:
        """Write statistics that devices changed in memory of their own to the buffers.

        A batch norm makes ``(1 - momentum) * old + momentum * batch`` of a statistic. If several devices did so, each
        from the same old value, the result is as if they had done it one after the other, in the order of the devices.

        Args:
            leaves: the buffers among them.
            before: what `save` returned.
            copies: for each device its own leaves, and the calls that it made.
        """
        for place, old in zip(self._changed, before, strict=True):
            buffer = leaves[place]
            for local, calls in copies:
                norms = [node for node in calls if node in self._by_place[place]]
                if norms and local[place] is not buffer:
                    kept = math.prod(1.0 - _momentum(node) for node in norms)
                    buffer.copy_(local[place].to(buffer.device) + kept * (buffer - old))

    def restore(self, leaves: Sequence[Any], saved: Sequence[Tensor]) -> None:
        """Write the buffers that were saved back."""
        with torch.no_grad():
            for place, value in zip(self._changed, saved, strict=True):
                leaves[place].copy_(value)

    def go_to(self, failed: Node | None, leaves: Sequence[Any]) -> None:
        """Change buffers as the ops before a failed one do, in the order of the module.

        Nothing is changed if the failed op isn't known, or on GPUs, where the tensors of a program are copies.
        """
        if failed is None or any(isinstance(leaf, Tensor) and leaf.device.type != "cpu" for leaf in leaves):
            return
        before = self.nodes[: self.nodes.index(failed)]
        ran = set(before)
        updates = [(buffer, value) for buffer, value in self.updates if value in ran]
        values = [value for _, value in updates]
        needed = needed_by([*values, *(node for node in self._norms if node in ran)])
        calls = tuple(node for node in before if node in needed and node.op in ("call_function", "get_attr"))
        program = Program(tuple(self.places), calls, values, torch.device("cpu"))
        with torch.no_grad():
            for (buffer, _), value in zip(updates, program.compile()(*leaves), strict=True):
                leaves[self.places[buffer]].copy_(value)


def _span(leaf: Any) -> tuple[Any, int, int]:
    """Return device, first address and end of a tensor's memory; (None, 0, 0) if it is no tensor or has no elements."""
    if not isinstance(leaf, Tensor) or not leaf.numel():
        return None, 0, 0
    last = sum((size - 1) * stride for size, stride in zip(leaf.shape, leaf.stride(), strict=True))
    first = leaf.data_ptr()
    return leaf.device, first, first + (last + 1) * leaf.element_size()


def _momentum(norm: Node) -> float:
    momentum: Any = norm.args[_MOMENTUM]
    return float(momentum)
