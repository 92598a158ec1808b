from dataclasses import fields

import numpy as np
import pytest
import torch

from experiments import constructive
from experiments.constructive_ablations import at_random, by_work, compared, reading, renumbered, without
from placeto.policies.one_shot.inputs import UNIT_FEATURES, OneShotInput, make_input
from placeto.training.learners import one_shot
from tests.cases import toy_problem


@pytest.fixture
def graph() -> OneShotInput:
    return make_input(toy_problem(0, 30, 3), "ops")


def different(one: OneShotInput, other: OneShotInput) -> set[str]:
    return {each.name for each in fields(one) if not torch.equal(getattr(one, each.name), getattr(other, each.name))}


def test_zeros_stand_for_what_is_left_out(graph: OneShotInput) -> None:
    changed = without(graph, ("profile", "delay"), ("tail",))
    assert different(graph, changed) == {"features", "profile", "delay"}
    assert not changed.profile.any()
    assert not changed.delay.any()
    (column,) = (graph.features != changed.features).any(0).nonzero().flatten().tolist()
    assert UNIT_FEATURES[column] == "tail"
    assert not changed.features[:, column].any()


def test_an_order_of_visits_changes_only_numbers_of_units(graph: OneShotInput) -> None:
    changed = renumbered(graph, by_work)
    assert (changed.work.diff() <= 0).all()
    assert different(graph, changed) > {"unit", "edges", "work", "features", "profile"}
    assert torch.equal(changed.work[changed.unit], graph.work[graph.unit])
    assert torch.equal(changed.profile[changed.edges], graph.profile[graph.edges])  # an arc joins the same units
    visits = at_random(graph)
    assert torch.equal(visits.sort().values, torch.arange(graph.num_units))
    there = renumbered(graph, lambda _: visits)
    assert different(graph, renumbered(there, lambda _: visits.argsort())) == set()


def test_policies_read_what_was_changed_in_training_and_afterwards() -> None:
    problem = toy_problem(0, 30, 3)
    with reading(lambda graph: without(graph, ("profile",))):
        for module in (one_shot, constructive):
            assert not module.make_input(problem, "ops").profile.any()
    for module in (one_shot, constructive):
        assert module.make_input(problem, "ops").profile.any()


def test_differences_are_paired_and_have_the_error_of_seeds_and_graphs() -> None:
    usual = np.array([[0.5, 1.0], [0.6, 1.2]])
    assert compared(usual * 1.1, usual) == "+9.5 ± 0.0, longer"
    assert compared(usual * 0.9, usual) == "-10.5 ± 0.0, shorter"
    by_seed = usual * np.exp([[0.00], [0.02]])  # 0 and 2 % longer: standard error 1 %
    assert compared(by_seed, usual) == "+1.0 ± 1.0"
    by_both = by_seed * np.exp([[0.00, 0.02]])  # the same over graphs
    assert compared(by_both, usual) == "+2.0 ± 1.4"
