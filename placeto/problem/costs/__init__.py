"""Cost models: how long each op takes on each device, by a datasheet, by a table of efficiencies, or measured.

Input: names and files. Output: objects with `op_time_us`. A new cost model is a file of its own here.
"""

from placeto.problem.costs.cost_files import NAMES, load_costs
from placeto.problem.costs.cost_model import CostModel, CostsError, with_measured
from placeto.problem.costs.efficiency import EFFICIENCY
from placeto.problem.costs.roofline import ROOFLINE, Roofline

__all__ = ["EFFICIENCY", "NAMES", "ROOFLINE", "CostModel", "CostsError", "Roofline", "load_costs", "with_measured"]
