"""Which devices are offered: all of a few, of many those that the columns speak for."""

import numpy as np
import pytest

from placeto.environment.columns import PAIR
from placeto.environment.instance import InstanceBatch, make_instance
from placeto.environment.observation import SERIAL_LOOK, look, observe
from placeto.environment.offers import ALL_OFFERED, IDLEST, NEAREST
from tests.cases import toy_problem


def setting(devices):
    batch = InstanceBatch.of([make_instance(toy_problem(2, 60, devices))])
    return batch, np.random.default_rng(0).integers(devices, size=batch.max_groups)


def seen_on(devices):
    batch, placement = setting(devices)
    zero = np.zeros(1, np.int64)
    return observe(batch, zero, placement[None], np.zeros((1, len(placement)), bool), zero)[0]


@pytest.mark.parametrize("devices", [2, ALL_OFFERED])
def test_of_few_devices_all_are_offered(devices):
    assert seen_on(devices).offered.all()


def test_of_many_devices_the_own_the_nearest_and_the_idlest_are_offered():
    seen = seen_on(20)
    affinity = seen.pair[:, :, PAIR.affinity_in] + seen.pair[:, :, PAIR.affinity_out]
    for g, (offered, current) in enumerate(zip(seen.offered, seen.current, strict=True)):
        others = np.setdiff1d(np.arange(20), [current])
        nearest = others[np.argsort(-affinity[g, others], kind="stable")[:NEAREST]]
        rest = np.setdiff1d(others, nearest)
        idlest = rest[np.argsort(seen.pair[g, rest, PAIR.load_after], kind="stable")[:IDLEST]]
        assert set(np.flatnonzero(offered)) == {current, *nearest, *idlest}


@pytest.mark.parametrize("serial_below", [0, SERIAL_LOOK])
def test_a_look_sees_the_same_of_what_it_offers_and_offers_nothing_to_visited_groups(serial_below, monkeypatch):
    monkeypatch.setattr("placeto.environment.observation.SERIAL_LOOK", serial_below)
    batch, placement = setting(5)
    visited = np.random.default_rng(1).random(len(placement)) < 0.5
    zero = np.zeros(1, np.int64)
    whole, part = (
        observe(batch, zero, placement[None], visited[None], zero + visited.sum())[0],
        look(batch, placement, visited),
    )
    assert part.offered.any()
    assert (part.offered == ~visited[:, None]).all()
    np.testing.assert_array_equal(part.pair[~visited], whole.pair[~visited])
    assert not part.pair[visited][:, :, PAIR.late_self].any()
    assert whole.pair[visited][:, :, PAIR.late_self].any()
    for name in ("node", "edge", "arcs", "current", "marked"):
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name))
