"""The generators that a placed step draws random numbers from: torch's, or one for each core."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch.fx import Node

from placeto.runtime.local_devices import LocalDevice


def draws(node: Node) -> bool:
    """Whether a call draws random numbers and can be given a generator."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(argument.name == "generator" for argument in schema.arguments)


def drawn_for_several(nodes: Iterable[Node], home: Mapping[Node, int], needed: Collection[Node]) -> dict[Node, int]:
    """Find the calls that draw random numbers, aren't ops (such as `torch.rand(8)`) and are needed by several devices.

    One device draws for all of them.

    Args:
        nodes: all nodes, in the order of the trace.
        home: the device of each op.
        needed: nodes that are called.

    Returns:
        By node, the device that draws: that of the node's first user.
    """

    def users(node: Node) -> list[int]:
        parts = ([home[user]] if user in home else users(user) for user in node.users if user in needed)
        return [number for part in parts for number in part]

    drawn = {}
    for node in nodes:
        if node in needed and node not in home and draws(node):
            devices = users(node)
            if len(set(devices)) > 1:
                drawn[node] = devices[0]
    return drawn


def generators(
    calls: Sequence[Sequence[Node]], received: Collection[tuple[int, Node]], devices: Sequence[LocalDevice]
) -> dict[int, torch.Generator]:
    """Return a generator for each core that draws random numbers; none if only one core does, which uses torch's.

    Args:
        calls: (D,) the calls of each device, in order.
        received: pairs of a device and a call that only receives a value there.
        devices: (D,) the devices.
    """
    drawing = {
        number
        for number, calls_there in enumerate(calls)
        if devices[number].is_cpu and any(draws(call) and (number, call) not in received for call in calls_there)
    }
    return {number: torch.Generator() for number in sorted(drawing)} if len(drawing) > 1 else {}
