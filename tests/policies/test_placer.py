"""What learned placers share."""

import math
import time

import pytest
import torch

from placeto.errors import PlacerError
from placeto.policies.learned_placer import LearnedPlacer, trained_devices
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult
from tests.toys import fork_of_chains


class OnTheFirst(LearnedPlacer):
    """Places all on the first device."""

    name = "first"

    def place(
        self, problem: PlacementProblem, simulations: int | None, seconds: float | None, seed: int, began: float
    ) -> PlacementResult:
        assert torch.get_num_threads() == 1
        assert began <= time.perf_counter()
        evaluator = Evaluator(problem, None, simulations, seconds, began)
        evaluator.score_ops([0] * problem.num_ops)  # type: ignore[arg-type]
        return evaluator.result()


def test_it_works_in_one_thread_and_its_results_have_its_name() -> None:
    result = OnTheFirst()(fork_of_chains(2, 3), simulations=5)
    assert (result.placer, result.simulations) == ("first", 1)
    assert result.seconds < 10.0


def test_more_devices_than_it_was_trained_on_are_refused() -> None:
    """The rest of its output is as it was drawn: it once put whole graphs on a device that it had never met."""
    placer = OnTheFirst()
    placer.most_devices = trained_devices({"devices": 2})
    assert placer(fork_of_chains(2, 3, 2), simulations=5).simulations == 1
    with pytest.raises(PlacerError, match="trained on 2 devices at most, the cluster toy has 3"):
        placer(fork_of_chains(2, 3, 3), simulations=5)
    assert trained_devices({}) == trained_devices({"devices": 0}) == math.inf
