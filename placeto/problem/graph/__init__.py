"""The computation graph: ops, their tensors and edges, what they are labelled with, and what they take of memory.

In come op records, files and arrays; out go a checked `ComputationGraph` and what follows from it alone, such as which
of its ops add up the gradients of micro-batches. Nothing here knows of devices.
"""

from placeto.problem.graph.arrays import GraphError
from placeto.problem.graph.graph import ComputationGraph
from placeto.problem.graph.graph_files import load_graph, save_graph

__all__ = ["ComputationGraph", "GraphError", "load_graph", "save_graph"]
