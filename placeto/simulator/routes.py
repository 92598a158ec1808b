"""Routes: by way of which devices the parts of a tensor travel.

Devices that exchange a tensor divide it into parts. Each part is summed up on one device, and from there sent to the
others. Torch's all-reduce goes around a ring. Other routes cross to each other host once.

Legend: D devices, P parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np


class Route(NamedTuple):
    """How a part gets from a device to all devices, or from all of them to this one."""

    device: int
    ends: tuple[int, ...]  # devices with which it exchanges the part directly; it is one of them if it has the tensor
    via: tuple[Route, ...] = ()  # routes from devices by way of which it exchanges the part with the others, in turn


class Routes(NamedTuple):
    """The routes of all parts."""

    summed: tuple[Route, ...]  # (P,) by which each part is summed up: from the ends to the first device
    sent: tuple[Route, ...]  # (P,) by which each sum is sent: from the same device to the ends


def ring(devices: Sequence[int]) -> Routes:
    """Return the routes of an all-reduce in a ring, in which each device sends to the next.

    Part p starts at device p. The device before it has the sum, and sends it around the ring again.

    >>> ring([4, 5]).summed[0]
    Route(device=5, ends=(5,), via=(Route(device=4, ends=(4,), via=()),))
    """
    turned = [[*devices[first:], *devices[:first]] for first in range(len(devices))]
    back = [_chain(row[::-1]) for row in turned]
    return Routes(tuple(back), tuple(_chain([row[-1], *row[:-1]]) for row in turned))


def _chain(devices: Sequence[int]) -> Route:
    route = Route(devices[-1], (devices[-1],))
    for device in devices[-2::-1]:
        route = Route(device, (device,), (route,))
    return route


def over_hosts(devices: Sequence[int], host: np.ndarray) -> Routes:
    """Return routes that cross to each other host once, to the device that has the same number within its host.

    Part p is summed up on device p: first on each other host. It is sent to the next host first, then to that after it,
    and so on. So not all devices send to one host at once.

    Args:
        devices: the devices that have parts.
        host: (D,) the host of each device of the cluster.
    """
    members, summed, sent = defaultdict[int, list[int]](list), list[Route](), list[Route]()
    for device in devices:
        members[int(host[device])].append(device)
    names = list(members)
    for device in devices:
        together = tuple(members[int(host[device])])
        number, turn = together.index(device), names.index(int(host[device]))
        others = [tuple(members[name]) for name in names[turn + 1 :] + names[:turn]]
        via = [Route(ends[number % len(ends)], ends) for ends in others]
        summed.append(Route(device, together, tuple(via[::-1])))  # so that each host sends to the next first
        sent.append(Route(device, together, tuple(via)))
    return Routes(tuple(summed), tuple(sent))


def levels(routes: Sequence[Route]) -> list[list[tuple[int, Route, int | None]]]:
    """Return the routes of P parts, then all that branch off from these, and so on, until none is left.

    Beside each route stand the number of its part, and the device from which it branches off, or None.
    """
    found = list[list[tuple[int, Route, int | None]]]()
    level: list[tuple[int, Route, int | None]] = [(part, route, None) for part, route in enumerate(routes)]
    while level:
        found.append(level)
        most = max(len(route.via) for _, route, _ in level)
        level = [
            (part, route.via[place], route.device)
            for place in range(most)
            for part, route, _ in found[-1]
            if place < len(route.via)
        ]
    return found


def reaches(route: Route, devices: Collection[int]) -> bool:
    """Whether a route leads to one of `devices`."""
    return any(end in devices for end in route.ends) or any(reaches(branch, devices) for branch in route.via)


def shares(size: int, count: int) -> list[int]:
    """Return the bytes of each part if `size` bytes are divided into `count` parts, as equally as possible.

    >>> shares(10, 4)
    [2, 3, 2, 3]
    """
    return [end - begin for begin, end in pairwise(size * number // count for number in range(count + 1))]
