"""The generators that a placed step draws random numbers from: torch's, or one for each core."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch.fx import Node

from placeto.runtime.local_devices import LocalDevice


def draws(node: Node) -> bool:
    """Whether a call draws random numbers and can be given a generator."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(argument.name == "generator" for argument in schema.arguments)


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
