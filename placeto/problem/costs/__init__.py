"""Cost models: how long each op takes on each device, by datasheets, by a table of efficiencies, or as measured.

Input: names and files. Output: objects with `op_time_us`. A new cost model is a new file in this folder.
"""

from placeto.errors import CostsError
from placeto.problem.costs.cost_files import NAMES, load_costs
from placeto.problem.costs.cost_model import CostModel, checked_times, with_measured
from placeto.problem.costs.efficiency import EFFICIENCY
from placeto.problem.costs.roofline import ROOFLINE, Roofline

__all__ = [
    "EFFICIENCY",
    "NAMES",
    "ROOFLINE",
    "CostModel",
    "CostsError",
    "Roofline",
    "checked_times",
    "load_costs",
    "with_measured",
]
