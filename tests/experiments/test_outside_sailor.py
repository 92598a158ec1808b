"""Steps of Sailor's plans; the data is a folder beside the repository."""

import pytest

from experiments.outside_sailor import (
    RIVALS,
    OutsideSailor,
    bandwidth,
    median_and_largest,
    pairs_in_order,
    read_measured,
    read_plans,
    sailor_s,
    simulate_plan,
)

DATA = OutsideSailor().data
needs_data = pytest.mark.skipif(not (DATA / "plans").exists(), reason="the measured steps aren't here")


def test_bandwidth_is_a_polynomial_of_the_logarithm_of_megabytes() -> None:
    link = [[1.0, 2.0, 3.0], 0.0]
    assert bandwidth(link, 4e6) == pytest.approx((4 + 4 + 3) * 1e3)  # bytes/us
    assert bandwidth(link, 1e3) == pytest.approx(3e3)  # as 1 MB


@needs_data
def test_sailors_formula_has_the_errors_that_its_own_program_has() -> None:
    measured = read_measured(DATA)
    for family, known in zip(("GH200", "mixed"), RIVALS["Sailor"], strict=True):
        plans = [plan for plan in read_plans(DATA) if plan.family == family]
        errors = [sailor_s(plan, measured) / plan.step_s - 1 for plan in plans]
        assert median_and_largest(errors).split()[-1] == known.split()[-1]


@needs_data
def test_plans_on_the_same_gpus_are_near_and_in_order() -> None:
    measured = read_measured(DATA)
    names = ("mit_N2_D1", "mit_N2_D2")
    found = [simulate_plan(plan, measured) for plan in read_plans(DATA) if plan.name in names]
    assert [each.plan.gpus for each in found] == [4, 4]
    assert max(abs(each.error) for each in found) < 0.075
    assert found[0].never_s < found[0].step_s  # its slow link keeps the senders
    assert pairs_in_order(found) == (1, 1)


@needs_data
def test_memory_is_near() -> None:
    (plan,) = [plan for plan in read_plans(DATA) if plan.name == "clariden_OPT-350_N4_D1"]
    assert abs(simulate_plan(plan, read_measured(DATA)).memory_error) < 0.1
