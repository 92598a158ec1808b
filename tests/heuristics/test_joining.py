import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto.heuristics.local_search.joining import Coarsening
from placeto.problem.grouping import group_ops
from tests.cases import toy_problem


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), size=st.integers(2, 120), devices=st.integers(1, 4), placed=st.integers(0, 1000))
def test_clusters_are_nested_numbered_by_their_first_group_and_each_on_one_device(seed, size, devices, placed):
    problem = toy_problem(seed, size, devices)
    groups = group_ops(problem)
    placement = np.random.default_rng(placed).integers(devices, size=groups.num_groups)
    counts = [max(2, round(share * groups.num_groups)) for share in (0.5, 0.25, 0.1)]
    coarsening, finer = Coarsening(problem, groups), np.arange(groups.num_groups)
    for rows, count in zip(coarsening.joined(placement, counts), counts, strict=True):
        found, first = np.unique(rows, return_index=True)
        np.testing.assert_array_equal(found, np.arange(len(found)))
        assert (np.diff(first) > 0).all()
        assert min(count, groups.num_groups) <= len(found) <= finer.max() + 1
        np.testing.assert_array_equal(placement[first][rows], placement)
        assert len(np.unique(np.stack([finer, rows]), axis=1).T) == finer.max() + 1, "a finer cluster is torn apart"
        of_ops = coarsening.groups_of(rows)
        np.testing.assert_array_equal(of_ops.group, rows[groups.group])
        assert of_ops.num_groups == len(found)
        finer = rows


def test_groups_that_exchange_most_for_their_work_are_joined_first():
    """On one device a chain of equal groups is halved by joining neighbours: no cluster is of strangers."""
    problem = toy_problem(3, 120, 1)
    groups = group_ops(problem)
    graph = problem.graph
    near = np.zeros((groups.num_groups, groups.num_groups), bool)
    near[groups.group[graph.edge_src], groups.group[graph.edge_dst]] = True
    near |= near.T
    zeros = np.zeros(groups.num_groups, np.int64)
    (rows,) = Coarsening(problem, groups).joined(zeros, [round(0.7 * groups.num_groups)])
    assert rows.max() + 1 == round(0.7 * groups.num_groups)
    sizes = np.bincount(rows)
    assert sizes.max() >= 2
    for cluster in np.flatnonzero(sizes == 2):
        assert near[np.ix_(*[np.flatnonzero(rows == cluster)] * 2)].any()


def test_a_count_that_cant_be_reached_leaves_more_clusters():
    problem = toy_problem(3, 40, 4)
    groups = group_ops(problem)
    apart = np.arange(groups.num_groups) % 4
    (rows,) = Coarsening(problem, groups).joined(apart, [1])
    assert rows.max() + 1 >= 4
