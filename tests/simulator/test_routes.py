"""Routes on two hosts, and around rings."""

import numpy as np
import pytest

from placeto.simulator.routes import Route, levels, over_hosts, reaches, ring, shares


def test_routes_over_hosts_worked_out_by_hand() -> None:
    """Devices 0 and 1 are on one host, 2 on the next, 3 and 4 on the last."""
    routes = over_hosts(range(5), np.array([0, 0, 1, 2, 2]))
    assert routes.sent[1] == Route(1, (0, 1), (Route(2, (2,)), Route(4, (3, 4))))
    assert routes.sent[2] == Route(2, (2,), (Route(3, (3, 4)), Route(0, (0, 1))))
    assert routes.summed[2] == Route(2, (2,), (Route(0, (0, 1)), Route(3, (3, 4))))


def test_a_ring_of_three_worked_out_by_hand() -> None:
    """Device 6 begins part 1, which goes to 7 and to 5, and then around again."""
    routes = ring([5, 6, 7])
    assert routes.summed[1] == Route(5, (5,), (Route(7, (7,), (Route(6, (6,)),)),))
    assert routes.sent[1] == Route(5, (5,), (Route(6, (6,), (Route(7, (7,)),)),))


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_each_part_has_all_devices_and_is_sent_from_where_it_is_summed_up(count: int) -> None:
    for routes in (ring(range(count)), over_hosts(range(count), np.arange(count) // 3)):
        assert len(routes.summed) == count
        for summed, sent in zip(*routes, strict=True):
            assert summed.device == sent.device
            for route in (summed, sent):
                ends = [end for level in levels([route]) for _, branch, _ in level for end in branch.ends]
                assert sorted(ends) == list(range(count))


def test_levels_go_over_all_parts_before_the_next_branch() -> None:
    routes = over_hosts([0, 1, 2], np.array([0, 1, 2])).sent
    first, second = levels(routes)
    assert [(part, sender) for part, _, sender in first] == [(0, None), (1, None), (2, None)]
    assert [(part, branch.device, sender) for part, branch, sender in second] == [
        (0, 1, 0), (1, 2, 1), (2, 0, 2), (0, 2, 0), (1, 0, 1), (2, 1, 2)
    ]  # fmt: skip


def test_a_route_reaches_what_branches_off_from_it() -> None:
    route = ring([0, 1, 2]).sent[0]
    assert reaches(route, {1})
    assert not reaches(route.via[0].via[0], {0, 2})


def test_shares_are_as_equal_as_possible() -> None:
    for size, count in ((0, 3), (10, 4), (1, 5), (12, 4)):
        parts = shares(size, count)
        assert (sum(parts), len(parts)) == (size, count)
        assert max(parts) - min(parts) <= 1
