"""Discrete-event simulation: how long a step takes with a placement, and how much memory it needs.

Input: a problem and placements. Output: a `Schedule` with the start and end of each op and transfer, the makespan, the
peak memory of each device, and the slack of each op. The kernels are compiled, and other compiled code may call them.
An `Evaluator` counts the simulations of a search against its budget, and keeps the best placement.
"""

from placeto.errors import PlacementError
from placeto.simulator.evaluator import Evaluator, PlacementResult
from placeto.simulator.memory import MEMORY_PENALTY
from placeto.simulator.schedule import Schedule, simulate, simulate_batch

__all__ = [
    "MEMORY_PENALTY",
    "Evaluator",
    "PlacementError",
    "PlacementResult",
    "Schedule",
    "simulate",
    "simulate_batch",
]
