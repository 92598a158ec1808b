"""How each kind of policy is improved: one learner a kind, all of them behind `placeto.trainer`."""

from __future__ import annotations

from placeto.learners.iterative import IterativeLearner
from placeto.learners.one_shot import OneShotLearner

LEARNERS = {
    "iterative": IterativeLearner,
    "one-shot": OneShotLearner,
}
"""Kind of policy -> learner."""
