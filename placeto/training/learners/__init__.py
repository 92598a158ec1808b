"""How each kind of policy is improved: one learner a kind, all of them behind `placeto.training.trainer`."""

from __future__ import annotations

from placeto.training.learners.iterative import IterativeLearner
from placeto.training.learners.one_shot import OneShotLearner

LEARNERS = {
    "iterative": IterativeLearner,
    "one-shot": OneShotLearner,
}
"""Kind of policy -> learner."""
