"""Placers compared fairly: the same problems, equal budgets, several seeds.

Input: graphs, clusters and placers, by name. Output: a row for each graph, placer and seed, a table of ratios of
makespans, and curves of makespan against budget.
"""

from placeto.evaluation.comparison import Row, evaluate, parse_spec
from placeto.evaluation.summary import Summary, markdown_table, summarize

__all__ = ["Row", "Summary", "evaluate", "markdown_table", "parse_spec", "summarize"]
