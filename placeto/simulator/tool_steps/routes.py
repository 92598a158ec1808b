"""Routes: by way of which devices the parts of a tensor travel.

Devices that exchange a tensor divide it into parts. Each part is summed up on one device, and from there sent to the
others. Torch's all-reduce goes around a ring. Other routes cross to each other host once.

Legend: D devices, P parts, H hops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np


class Hop(NamedTuple):
    """A device on the way of a part."""

    device: int
    before: int | None  # the device from which it gets the part, or to which it sends its sum; None = none
    ends: tuple[int, ...]  # devices that have their own part there, or receive it; mostly the device itself


Route = tuple[Hop, ...]
"""(H,) the way of a part: the device that has its sum comes first, and each other hop after the one before it."""


class Routes(NamedTuple):
    """The routes of all parts. Those of each direction have equally many hops."""

    summed: tuple[Route, ...]  # (P,) the way on which each part is summed up, from its last hop to the first
    sent: tuple[Route, ...]  # (P,) the way on which each sum is sent, from its first hop to the last


def ring(devices: Sequence[int]) -> Routes:
    """Return the routes of an all-reduce in a ring, in which each device sends to the next.

    Part p starts at device p. The device before it has the sum, and sends it around the ring again.

    >>> ring([4, 5]).summed[0]
    (Hop(device=5, before=None, ends=(5,)), Hop(device=4, before=5, ends=(4,)))
    """
    turned = [[*devices[first:], *devices[:first]] for first in range(len(devices))]
    return Routes(tuple(_chain(row[::-1]) for row in turned), tuple(_chain([row[-1], *row[:-1]]) for row in turned))


def _chain(devices: Sequence[int]) -> Route:
    return tuple(Hop(device, before, (device,)) for before, device in pairwise([None, *devices]) if device is not None)


def over_hosts(devices: Sequence[int], host: np.ndarray) -> Routes:
    """Return routes round a ring of hosts, on each by way of the device that has the same number within its host.

    Part p is summed up on device p, and sent from there to the next host, from this to that after it, and so on. So
    each host receives from one other host alone, and no transfer waits behind that of a third host.

    Args:
        devices: the devices that have parts.
        host: (D,) the host of each device of the cluster.
    """
    members, routes = defaultdict[int, list[int]](list), list[Route]()
    for device in devices:
        members[int(host[device])].append(device)
    hosts = [tuple(those) for those in members.values()]
    for device in devices:
        turn = next(number for number, those in enumerate(hosts) if device in those)
        same_host, number = hosts[turn], hosts[turn].index(device)
        others = hosts[turn + 1 :] + hosts[:turn]
        ways = [device, *(those[number % len(those)] for those in others)]
        hops = zip(ways, [None, *ways], [same_host, *others], strict=False)
        routes.append(tuple(Hop(*hop) for hop in hops))
    return Routes(tuple(routes), tuple(routes))


def shares(size: int, count: int) -> list[int]:
    """Return the bytes of each part if `size` bytes are divided into `count` parts, as equally as possible.

    >>> shares(10, 4)
    [2, 3, 2, 3]
    """
    return [end - begin for begin, end in pairwise(size * number // count for number in range(count + 1))]
