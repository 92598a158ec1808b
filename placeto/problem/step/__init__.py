"""A training step as people decide about it: the layers between which a model can be cut, and plans of stages.

Input: a `PlacementProblem`. `layers` divides its graph, `borders` says where a tool can cut it and why not elsewhere,
and a `Plan` is a decision: stages, replicas, micro-batches, order. `Plan.placement` turns it into a device for each op.
"""

from placeto.problem.step.layers import Layers, layers
from placeto.problem.step.plan import Plan, PlanError

__all__ = ["Layers", "Plan", "PlanError", "layers"]
