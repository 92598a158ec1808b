"""How long the collectives of a group of devices take: a ring, whose steps pass a part of the tensor on."""

from __future__ import annotations

STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""Kind of collective -> how often each part of the tensor goes round the ring."""


def collective_us(kind: str, nbytes: int, ranks: int, bandwidth: float, latency_us: float) -> float:
    """Return the microseconds of a collective.

    Args:
        kind: one of `STEPS`.
        nbytes: bytes of the whole tensor.
        ranks: number of devices that take part.
        bandwidth: bytes per microsecond of a link between two of them.
        latency_us: of such a link.

    >>> collective_us("all_reduce", 4000, 4, 1000.0, 1.0)
    12.0
    """
    return STEPS[kind] * (ranks - 1) * (nbytes / ranks / bandwidth + latency_us)
