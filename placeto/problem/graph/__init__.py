"""The computation graph: ops, their tensors and edges, their labels, and the memory that they take.

Input: op records, files and arrays. Output: a checked `ComputationGraph`, and what follows from it alone, such as which
of its ops add up the gradients of micro-batches. Nothing here depends on devices.
"""

from placeto.errors import GraphError
from placeto.problem.graph.graph import FORMAT, ComputationGraph
from placeto.problem.graph.graph_files import load_graph, save_graph
from placeto.problem.graph.label_values import MODES

__all__ = ["FORMAT", "MODES", "ComputationGraph", "GraphError", "load_graph", "save_graph"]
