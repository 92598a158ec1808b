"""The plans of the experiment are such as torch runs."""

import pytest

from experiments.measured_plans import FACTORIES, SHAPES, pipelines
from placeto.problem.cluster import load_cluster
from placeto.problem.costs import load_costs
from placeto.runtime.measuring.profiling import Profile


@pytest.mark.parametrize("name", FACTORIES)
def test_all_shapes_are_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    estimated = Profile(load_costs("efficiency"), load_cluster("2xcpu-core"), ())  # type: ignore[arg-type]
    made = pipelines(FACTORIES[name], (4,), estimated)
    assert list(made) == [(shape, 4) for shape in SHAPES]
    assert capsys.readouterr().out == ""
    for (shape, _), of in made.items():
        assert of.order.plan.devices == SHAPES[shape][0]
