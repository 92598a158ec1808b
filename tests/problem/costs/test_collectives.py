"""Collectives of a few bytes and ranks, computed by hand."""

import pytest

from placeto.problem.costs.collectives import HOP, SHARE, START_US, collective_us

LINK = {"bandwidth": 1000.0 / SHARE, "latency_us": 1.0 / HOP}
"""1000 bytes a microsecond are left of it, and a hop takes 1 us."""


@pytest.mark.parametrize(
    ("kind", "us"),
    [
        ("all_reduce", 6 * (1.0 + 100.0)),  # 2 (4 - 1) rounds, each of a quarter of 400,000 bytes
        ("all_gather", 3 * (1.0 + 100.0)),
        ("reduce_scatter", 3 * (1.0 + 100.0)),
        ("all_to_all", 1.0 + 3 * 100.0),  # three quarters leave a rank, all at once
    ],
)
def test_each_kind_takes_its_rounds(kind: str, us: float) -> None:
    assert collective_us(kind, 400_000, 4, **LINK) == pytest.approx(START_US + us)


def test_many_ranks_sum_little_along_trees_and_much_round_a_ring() -> None:
    hops = 7 + 3  # a chain of 8 on each of 8 hosts, which three levels of pairs join
    assert collective_us("all_reduce", 1000, 64, **LINK) == pytest.approx(START_US + 2 * (hops + 1.0))
    ring_us = 2 * 63 * (1.0 + 1000.0)
    assert collective_us("all_reduce", 64_000_000, 64, **LINK) == pytest.approx(START_US + ring_us)


def test_one_rank_has_nothing_to_exchange_and_an_unknown_kind_is_refused() -> None:
    assert collective_us("all_reduce", 10**9, 1, **LINK) == 0.0
    with pytest.raises(KeyError):
        collective_us("broadcast", 1, 2, **LINK)
