"""How long a collective takes: all-reduce, all-gather, reduce-scatter and all-to-all, as NCCL runs them.

Of R ranks, in a ring each hands a share of 1 / R of the tensor to the next, R - 1 times for an all-gather or a
reduce-scatter, and twice as often for an all-reduce, which is both (Patarasuk and Yuan, Journal of Parallel and
Distributed Computing 69, 2009). An all-reduce of many ranks is also computed along trees: a chain on each host, which
joins hosts in pairs. Then each tensor goes up and down whole, in fewer hops. The shorter of the two counts. In an
all-to-all each rank sends a share to each other, all at once.

Each collective begins with a fixed part, each hop has another, and links reach a share of their bandwidth. These three
numbers are the round ones near the best for the all-reduces of 2, 4 and 8 A100 that VIA-Research/vTrain measured (MICRO
2024, arXiv 2312.12391), for the links of `8xa100-40gb`: `python -m experiments.collectives`. Other links are taken to
reach the same share.

A collective whose transfers are simulated one by one goes over `collective_links`. So it takes as long as
`collective_us` says of a ring if no other transfer is in its way.
"""

from __future__ import annotations

from dataclasses import replace

from placeto.problem.cluster import Cluster

START_US = 35.0
"""Microseconds until a collective has begun on all ranks."""
HOP = 0.3
"""Share of a link's latency that a hop takes: the latency is that of a transfer by itself, which a program begins."""
SHARE = 0.83
"""Share of a link's bandwidth that collectives reach."""
ON_HOST = 8
"""Ranks of a host, at most: in a tree they are a chain."""
_ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


def collective_us(kind: str, nbytes: int, ranks: int, bandwidth: float, latency_us: float) -> float:
    """Return the microseconds of a collective.

    Args:
        kind: "all_reduce", "all_gather", "reduce_scatter" or "all_to_all".
        nbytes: bytes of the whole tensor, which one rank has before or after it.
        ranks: R, how many take part.
        bandwidth: bytes/us of the link between two of them.
        latency_us: of this link.

    >>> round(collective_us("all_reduce", 64 * 10**6, 4, 253e3, 8.0), 1)
    506.6
    """
    if ranks < 2:
        return 0.0
    whole_us, hop_us = nbytes / (SHARE * bandwidth), HOP * latency_us
    if kind == "all_to_all":
        return START_US + hop_us + (ranks - 1) / ranks * whole_us
    rounds = _ROUNDS[kind]
    ring_us = rounds * ((ranks - 1) * hop_us + (ranks - 1) / ranks * whole_us)
    if kind == "all_reduce":
        depth = min(ranks, ON_HOST) - 1 + (-(-ranks // ON_HOST) - 1).bit_length()
        ring_us = min(ring_us, 2 * (depth * hop_us + whole_us))
    return START_US + ring_us


def collective_links(cluster: Cluster, hops: int) -> Cluster:
    """Return a cluster on whose links a transfer takes as long as a hop of a collective on those of `cluster`.

    Args:
        cluster: links by which a program copies a tensor.
        hops: how many hops of a collective follow one another on a link. Each has an equal part of the fixed part.

    >>> from placeto import load_cluster
    >>> links = collective_links(load_cluster("8xa100-40gb"), 6)
    >>> round(float(6 * (links.latency_us[0, 1] + 16 * 10**6 / links.bandwidth[0, 1])), 1)
    506.6
    """
    shared = tuple(replace(link, bandwidth=SHARE * link.bandwidth) for link in cluster.shared_links)
    latency_us = HOP * cluster.latency_us + START_US / hops
    return replace(cluster, bandwidth=SHARE * cluster.bandwidth, latency_us=latency_us, shared_links=shared)
