"""Validation of a policy in training on the validation problems, and the same for its controls.

The controls are the policy before training, uniformly random decisions, METIS, the best cheap heuristic of each
problem, and a search that needs no training, with as many simulations as that heuristic and the policy together.
"""

from __future__ import annotations

import numpy as np

from placeto.formats.gantt import gantt_figure
from placeto.heuristics.local_search.multilevel import v_cycles
from placeto.heuristics.local_search.starts import best_cheap, follow
from placeto.heuristics.partition import try_metis
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import simulate
from placeto.training.curves import Curves
from placeto.training.learners.learner import Learner, TrainState, Validation
from placeto.training.ranks import Ranks
from placeto.training.tags import of_graph


def validate(learner: Learner, state: TrainState, curves: Curves, ranks: Ranks) -> dict[str, float]:
    """Validate the moving average of the parameters, and keep it as the best parameters if it is the best so far.

    It is the best if the mean of `Validation.judged` is the least so far. The first rank then also draws the schedule
    of the first problem. Returns the numbers to log, by tensorboard tag, the controls among them.
    """
    with state.averaged():
        validation: Validation = ranks.made_by_first(lambda: learner.validate(state))
    judged = float(validation.judged.mean())
    if judged < state.best_validation:
        state.best_validation = judged
        if (count := len(validation.judged)) > 1:  # of a single graph the error isn't known
            state.controls["validation/error"] = float(validation.judged.std(ddof=1) / count**0.5)
        state.best_parameters = dict(state.average)
        if ranks.first:
            first = next(iter(learner.validation.values()))
            schedule = simulate(first, validation.placement)
            curves.picture("schedule/validation", gantt_figure(schedule), state.iteration)
    curves.distribution("validation/end_distribution", validation.end, state.iteration)
    ends = zip(learner.validation, validation.end.tolist(), strict=True)
    return {
        "validation/end": float(validation.end.mean()),
        "validation/best_met": float(validation.best_met.mean()),
        "validation/to_heuristic": float(validation.to_heuristic.mean()),
        "validation/kept": state.best_validation,
        **{of_graph(name): end for name, end in ends},
        **state.controls,
    }


def controls(learner: Learner, state: TrainState, ranks: Ranks) -> dict[str, float]:
    """Validate the policy before training, random decisions and heuristics; return the numbers to log, by tag."""

    def judged() -> dict[str, float]:
        untrained, (end, best_met) = learner.validate(state), learner.validate_random()
        means: dict[str, np.ndarray] = {
            "untrained_end": untrained.end,
            "untrained_best_met": untrained.best_met,
            "random_end": end,
            "random_best_met": best_met,
            "heuristic": untrained.best_met / untrained.to_heuristic,
        }
        rivals = [_rivals(*each) for each in zip(learner.validation.values(), untrained.moves.tolist(), strict=True)]
        means |= dict(zip(("metis", "multilevel"), np.array(rivals).T, strict=True))
        return {f"validation/{name}": float(values.mean()) for name, values in means.items()}

    return ranks.made_by_first(judged)


def _rivals(problem: PlacementProblem, moves: int) -> tuple[float, float]:
    """Place a problem by METIS, and by `multilevel` within the simulations of the cheap heuristics and of `moves`.

    Returns their penalised makespans, divided by that of the best single device.
    """
    metis, cheap = Evaluator(problem), Evaluator(problem)
    try_metis(metis, 0)
    best_cheap(cheap)
    search = Evaluator(problem, cheap.groups, cheap.simulations + moves)
    follow(v_cycles, search, 0)
    return metis.best_score / problem.single_device_us, search.best_score / problem.single_device_us
