"""Routes on two hosts, and around rings."""

import numpy as np
import pytest

from placeto.simulator.tool_steps.routes import Hop, over_hosts, ring, shares


def test_routes_over_hosts_worked_out_by_hand() -> None:
    """Devices 0 and 1 are on one host, 2 on the next, 3 and 4 on the last."""
    routes = over_hosts(range(5), np.array([0, 0, 1, 2, 2]))
    assert routes.sent[1] == (Hop(1, None, (0, 1)), Hop(2, 1, (2,)), Hop(4, 2, (3, 4)))
    assert routes.sent[2] == (Hop(2, None, (2,)), Hop(3, 2, (3, 4)), Hop(0, 3, (0, 1)))
    assert routes.summed == routes.sent


def test_a_ring_of_three_worked_out_by_hand() -> None:
    """Device 6 begins part 1, which goes to 7 and to 5, and then around again."""
    routes = ring([5, 6, 7])
    assert routes.summed[1] == (Hop(5, None, (5,)), Hop(7, 5, (7,)), Hop(6, 7, (6,)))
    assert routes.sent[1] == (Hop(5, None, (5,)), Hop(6, 5, (6,)), Hop(7, 6, (7,)))


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_each_part_has_all_devices_and_is_sent_from_where_it_is_summed_up(count: int) -> None:
    for routes in (ring(range(count)), over_hosts(range(count), np.arange(count) // 3)):
        assert len(routes.summed) == count
        assert len({*map(len, routes.summed), *map(len, routes.sent)}) == 1
        for summed, sent in zip(*routes, strict=True):
            assert summed[0].device == sent[0].device
            for route in (summed, sent):
                assert sorted(end for hop in route for end in hop.ends) == list(range(count))
                for number, hop in enumerate(route):
                    assert hop.before in [before.device for before in route[:number]] or number == 0


def test_shares_are_as_equal_as_possible() -> None:
    for size, count in ((0, 3), (10, 4), (1, 5), (12, 4)):
        parts = shares(size, count)
        assert (sum(parts), len(parts)) == (size, count)
        assert max(parts) - min(parts) <= 1
