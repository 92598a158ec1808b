"""Which modules change a tensor in place that another module made, noted while a step is traced.

Tools that run modules on several devices give a module copies of its arguments. A change of such a copy is lost, unless
the module is where the tensor was made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.fx import Node

from placeto.capture.tracing.lifetimes import Lifetimes
from placeto.problem.graph.module_paths import inside, unit_of


class Changes:
    """Notes the changes in place of the forward pass while nodes are recorded.

    `found` has the module of each change -> the nodes that made the tensors, for changes that others can see: parts of
    the model outside of the module's unit read the tensor later, or it lives longer than the step.
    """

    def __init__(self, lifetimes: Lifetimes) -> None:
        self.found: dict[str, dict[Node, None]] = {}
        self._lifetimes = lifetimes
        self._first: dict[Node, Node] = {}  # node -> the node that made the memory of its value
        self._changed: dict[Node, set[str]] = {}  # node that made a tensor -> the modules that have changed it

    def made(self, tensor: Tensor, node: Node) -> None:
        """Note that the value of a node is this tensor, which `Lifetimes` knows."""
        self._first[node] = self._lifetimes.first(tensor)

    def ran(self, node: Node, written: Iterable[Node]) -> None:
        """Note that a node has run, and which of its arguments it has changed."""
        label = node.meta["label"]
        if label.backward:
            return
        for source in node.all_input_nodes:
            self._read(source, label.module)
        for source in written:
            first = self._first.get(source, source)
            self._changed.setdefault(first, set()).add(label.module)
            if first.op == "placeholder":
                self._read(source, "")

    def end(self, outputs: Iterable[Node]) -> None:
        """Note that the step returns the values of these nodes."""
        for node in outputs:
            self._read(node, "")

    def _read(self, node: Node, reader: str) -> None:
        first = self._first.get(node, node)
        for module in self._changed.get(first, ()):
            if not inside(reader, unit_of(module)):
                self.found.setdefault(module, {})[first] = None
