"""Learners: one for each kind of policy, whose iterations `placeto.training.trainer` runs.

Input: problems and a config. A learner makes a policy, improves it in iterations, and validates it.
"""

from __future__ import annotations

from collections.abc import Callable

from placeto.training.learners.iterative import IterativeLearner
from placeto.training.learners.learner import Learner, Run
from placeto.training.learners.one_shot import OneShotLearner
from placeto.training.learners.traversal import TraversalLearner

__all__ = ["LEARNERS"]

LEARNERS: dict[str, Callable[[Run], Learner]] = {
    "iterative": IterativeLearner,
    "traversal": TraversalLearner,
    "one-shot": OneShotLearner,
}
"""Kind of policy -> class of its learner."""
