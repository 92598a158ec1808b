"""Tuning: what is chosen, and by which times."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from placeto.problem.problem import PlacementProblem
from placeto.runtime.local_devices import LocalDevice
from placeto.runtime.measuring import tuning
from placeto.runtime.measuring.profiling import profile
from placeto.runtime.measuring.tuning import Round, corrected, tune
from placeto.runtime.real_steps import RealStep, real_training
from placeto.simulator.evaluator import PlacementResult
from placeto.simulator.schedule import simulate
from tests.captures import Made


@pytest.fixture(scope="module")
def step() -> RealStep:
    torch.manual_seed(0)
    towers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(2))
    module = Made(lambda self, x: torch.stack([tower(x) for tower in self.towers]).sum(), towers=towers)
    return real_training(module, [torch.randn(8, 32)])


def placed(problem: PlacementProblem, placement: Sequence[int]) -> PlacementResult:
    return replace(PlacementResult.of(simulate(problem, placement)), placer="by hand")


def by_hand(problem: PlacementProblem, number: int) -> list[PlacementResult]:
    """The second tower on the second core, and all by turns, which is slow."""
    names = problem.graph.op_names
    return [
        placed(problem, [int("towers.1" in name) for name in names]),
        placed(problem, np.arange(problem.num_ops) % 2),
    ]


@pytest.mark.parametrize(("factor", "kept"), [(0.5, True), (2.0, False)])
def test_it_is_never_slower_than_one_device(
    factor: float, kept: bool, step: RealStep, devices: list[LocalDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever placements take when they are run, here a factor of one device in the last check."""
    real, checks = tuning.in_turns, []

    def watched(functions: Sequence[object], seconds: float) -> list[np.ndarray]:
        times = real(functions[:], seconds, 1)  # type: ignore[arg-type]
        times[1][:] = 1.0  # in each round a placement is faster than one device
        if len(functions) == 2:
            checks.append(times)
            return [np.full(3, 100.0 * factor), np.full(3, 100.0)]
        return times

    monkeypatch.setattr(tuning, "in_turns", watched)
    rounds: list[Round] = []
    found = tune(step, devices, by_hand, 0.2, report=rounds.append)
    assert len(checks) == 1
    assert tuple(rounds) == found.rounds
    assert all(len(one.candidates) >= 3 for one in rounds), "one device is run in each round"
    assert found.measured_us == 100.0 * min(factor, 1.0)
    used = len(np.unique(found.result.placement))
    best = min(rounds[-1].candidates, key=lambda candidate: candidate.measured_us)
    assert used == 1 or kept
    assert found.result.makespan_us > 0
    if not kept:
        assert used == 1
    assert best.measured_us == rounds[-1].candidates[0].measured_us


def test_one_device_is_not_compared_with_itself(
    step: RealStep, devices: list[LocalDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no placement was faster, the last check runs it alone, and there is nothing to gain."""
    checks = []

    def timed(functions: Sequence[object], *_: object) -> list[np.ndarray]:
        if len(functions) < 3:
            checks.append(len(functions))
        return [np.full(3, 100.0 + 10.0 * number) for number, _ in enumerate(functions)]

    monkeypatch.setattr(tuning, "in_turns", timed)
    found = tune(step, devices, by_hand, 0.2)
    assert checks == [1]
    assert found.measured_us == found.one_device_us == 100.0
    assert len(np.unique(found.result.placement)) == 1


def test_costs_take_what_ops_took_in_the_placement(step: RealStep, devices: list[LocalDevice]) -> None:
    made = profile([step], devices, 0.1)
    problem = PlacementProblem(step.capture.graph, made.cluster, made.costs)
    slow = made.costs.ops[0].__class__
    wrong = made.costs.__class__(
        made.costs.torch,
        made.costs.machine,
        tuple(slow(c.signature, c.type, c.flops, c.bytes_accessed, {"cpu": 1e6}) for c in made.costs.ops),
        made.costs.fits,
    )
    better = corrected(wrong, step, by_hand(problem, 0)[0], devices)
    assert len(better.ops) == len(wrong.ops)
    assert max(cost.time_us["cpu"] for cost in better.ops) < 1e5


def test_what_is_written_is_simulated_by_the_costs_of_the_last_round(
    step: RealStep, devices: list[LocalDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best is of the first round; its costs were corrected since, and its order is still the one that was run."""

    def timed(functions: Sequence[object], *_: object) -> list[np.ndarray]:
        best, one, others = np.full(3, 50.0), np.full(3, 100.0), [np.full(3, 90.0)] * (len(functions) - 2)
        return [best, one] if len(functions) == 2 else [one, best, *others]

    monkeypatch.setattr(tuning, "in_turns", timed)
    monkeypatch.setattr(tuning, "_ON_PROFILE", 0.001)
    found = tune(step, devices, by_hand, 60.0)
    assert len(found.rounds) == 2, "the second gains nothing"
    first, last = (next(c for c in r.candidates if c.measured_us == 50.0).result for r in found.rounds)
    assert first.problem.costs != last.problem.costs
    assert found.result.problem.costs == last.problem.costs
    assert found.result.placer == "by hand"
    ran = [of.tolist() for of in first.schedule().device_order]
    assert [of.tolist() for of in found.result.schedule().device_order] == ran
    assert found.result.makespan_us == found.result.schedule().makespan_us
