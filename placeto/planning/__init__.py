"""Which way to run a model on given devices: replicas, pipelines, or a free placement of ops.

Input: a training step in several numbers of micro-batches, and a cluster. Output: the ways to run the step, the fastest
first, or what is needed to make it fit into the memory of one device.
"""

from placeto.errors import PlanError
from placeto.planning.model_plans import plan
from placeto.planning.planned_steps import PlannedStep, Plans

PlanningError = PlanError  # its name before, for one version
__all__ = ["PlanError", "PlannedStep", "Plans", "plan"]
