"""How each kind of policy is improved: one learner a kind, all of them behind `placeto.trainer`."""

from __future__ import annotations

from placeto.learners.iterative import IterativeLearner

LEARNERS = {
    "iterative": IterativeLearner,
}
"""Kind of policy -> learner."""
