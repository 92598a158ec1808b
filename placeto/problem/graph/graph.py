"""The computation graph: what is placed.

Legend: N ops, T tensors (op outputs), E edges.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from placeto.problem.graph import memory_fields
from placeto.problem.graph.arrays import GraphArrays
from placeto.problem.graph.graph_checks import validate
from placeto.problem.graph.label_values import LABELS, NO_MICRO_BATCH
from placeto.problem.graph.likeness import likeness
from placeto.problem.graph.op_records import fields_of_ops, ops_of
from placeto.problem.units import format_bytes

if TYPE_CHECKING:
    import networkx as nx

FORMAT = "placeto.graph/1"


@dataclass(frozen=True, eq=False)
class ComputationGraph(GraphArrays):
    """A directed acyclic graph of ops that exchange tensors; `GraphArrays` has its fields.

    Edges are stored by consumer: the edges into op i stand together, in the order of its inputs. Two edges with the
    same (src, output) carry one tensor. Output o of op i is tensor ``output_ptr[i] + o``.

    Build a graph with `from_ops`, `load_graph` or `placeto.capture.trace`, which check each op. The constructor checks
    types and lengths of fields, completes those that are None, and makes the arrays read-only.

    Raises:
        GraphError: a field has another type or length, a number is negative or not finite, an input isn't there, the
            graph has a cycle, or no op; the message names the op.
    """

    def __post_init__(self) -> None:
        validate(self)
        memory_fields.complete(self)
        arrays = [v for v in vars(self).values() if isinstance(v, np.ndarray)]
        for array in [*arrays, *self.time_us.values()]:
            array.setflags(write=False)

    def __repr__(self) -> str:
        work, size = f"{self.flops.sum() / 1e9:.3g} GFLOP", format_bytes(int(self.param_bytes.sum()))
        counts = f"{self.num_ops} ops, {self.num_edges} edges, {work}, parameters {size}"
        return f"ComputationGraph({self.name!r}, {self.mode}: {counts})"

    @cached_property
    def num_micro_batches(self) -> int:
        """M, the number of micro-batches; 1 if the graph isn't in micro-batches."""
        return max(1, int(self.micro_batches.max(initial=NO_MICRO_BATCH)) + 1)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content (name of the graph excluded), 64 hex digits."""
        digest = hashlib.sha256(f"{FORMAT}\n{self.mode}\n".encode())
        for strings in (self.op_names, self.op_types, self.modules):
            digest.update(json.dumps(strings).encode())
        arrays = [self.flops, self.bytes_accessed, self.param_bytes, self.colocation]
        arrays += [self.output_ptr, self.output_bytes, self.edge_src, self.edge_dst, self.edge_output]
        for array in arrays:
            digest.update(array.tobytes())
        for key, array in memory_fields.unusual(self).items():
            digest.update(key.encode() + array.tobytes())
        for key, usual in LABELS.items():
            if set(getattr(self, key)) != {usual}:
                digest.update((key + json.dumps(getattr(self, key))).encode())
        if (self.micro_batches != NO_MICRO_BATCH).any():
            digest.update(b"micro_batches" + self.micro_batches.tobytes())
        for kind in sorted(self.time_us):
            digest.update(kind.encode())
            digest.update(np.where(np.isnan(self.time_us[kind]), np.nan, self.time_us[kind]).tobytes())
        return digest.hexdigest()

    @cached_property
    def likeness(self) -> str:
        """Hash of the content without names, 64 hex digits: see `placeto.problem.graph.likeness`."""
        return likeness(self)

    @classmethod
    def from_ops(cls, name: str, ops: Sequence[Mapping[str, Any]], mode: str = "training") -> ComputationGraph:
        """Build a graph from op records as in the file format.

        >>> tiny = ComputationGraph.from_ops("tiny", [
        ...     {"name": "a", "type": "mm", "outputs": [4]},
        ...     {"name": "b", "type": "add", "inputs": [["a", 0]]}])
        >>> tiny.num_ops, tiny.num_edges
        (2, 1)

        Raises:
            GraphError: a record has a wrong field, the name of another one, or an input that isn't there, or as for the
                class; the message names the op.
        """
        return cls(name=name, mode=mode, **fields_of_ops(ops, mode))

    def to_ops(self) -> list[dict[str, Any]]:
        """Return op records as in the file format: the inverse of `from_ops`."""
        return ops_of(self)

    def to_networkx(self) -> nx.MultiDiGraph:
        """Return the graph as a networkx MultiDiGraph.

        Nodes are op names, and have the other fields of their op records as data. Edges have ``output``, which output
        of the source the target reads, and ``bytes``, its size.
        """
        import networkx as nx

        graph = nx.MultiDiGraph(name=self.name, mode=self.mode)
        for record in self.to_ops():
            inputs = record.pop("inputs", [])
            name = record.pop("name")
            graph.add_node(name, **record)
            for source, output in inputs:
                graph.add_edge(source, name, output=output)
        for source, _, data in graph.edges(data=True):
            data["bytes"] = graph.nodes[source]["outputs"][data["output"]]
        return graph
