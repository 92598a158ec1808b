"""Clusters with more devices of their kind."""

import numpy as np

from placeto.problem.cluster import load_cluster
from placeto.problem.cluster.more_devices import with_devices


def test_further_devices_have_the_links_of_the_last_one() -> None:
    cluster = load_cluster("2x4xv100")
    larger = with_devices(cluster, 10)
    assert larger.num_devices == 10
    assert larger.hosts == (*cluster.hosts, 1, 1)
    assert np.array_equal(larger.bandwidth[:8, :8], cluster.bandwidth)
    assert np.array_equal(larger.bandwidth[8:, :7], cluster.bandwidth[[7, 7], :7])
    inside = cluster.bandwidth[7, 6], cluster.latency_us[7, 6]
    assert {(larger.bandwidth[pair], larger.latency_us[pair]) for pair in ((7, 8), (8, 7), (8, 9), (9, 8))} == {inside}
    for before, after in zip(cluster.shared_links, larger.shared_links, strict=True):
        last = cluster.device_names[7]
        for old, new in ((before.senders, after.senders), (before.receivers, after.receivers)):
            assert set(new) - set(old) == ({f"{last}+1", f"{last}+2"} if last in old else set())


def test_a_device_that_is_alone_gets_neighbours() -> None:
    alone = load_cluster("1xh100")
    assert np.isfinite(with_devices(alone, 3).bandwidth[0, 1:]).all()
    assert with_devices(load_cluster("cpu+1xh100"), 2).computing == (1, 2)
