"""Validation of a policy in training on the validation problems, and the same for three controls.

The controls are the policy before training, uniformly random decisions, and the best cheap heuristic of each problem.
"""

from __future__ import annotations

import numpy as np

from placeto.formats.gantt import gantt_figure
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
        return {f"validation/{name}": float(values.mean()) for name, values in means.items()}

    return ranks.made_by_first(judged)
