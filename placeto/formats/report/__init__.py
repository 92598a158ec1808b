"""The report on a placement: one page of HTML that needs nothing else, neither files nor a network.

`page` writes it, and other modules make its parts: `words` the paragraphs, `tables` the tables, `modules` the tree of
modules, `memory_pictures` the pictures of memory over time, `grid` the passes over micro-batches by device, and
`chart` the arrays that the script draws as a Gantt chart.
"""

from placeto.formats.report.page import Ways, report_page, save_report

__all__ = ["Ways", "report_page", "save_report"]
