"""The op records of a step while they are made from a traced graph, and what the values of its nodes are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from networkx.utils import UnionFind
from torch import Tensor
from torch.fx import Node

from placeto.capture.costing.node_costs import bytes_accessed, dtype, flops, in_tf32, kernel, packet_of, tensor_bytes
from placeto.capture.costing.signatures import signature
from placeto.capture.tracing.draws import RAN
from placeto.capture.tracing.node_labels import Label
from placeto.problem.dtypes import DEFAULT
from placeto.problem.graph.label_values import ATTENTION

aten = torch.ops.aten
_INTO_ZEROS = {aten.scatter, aten.scatter_add, aten.index_add, aten.index_put, aten.masked_scatter}
"""Ops by which autograd puts gradients into zeros: in place, but not while they are traced."""


@dataclass(frozen=True)
class MadeBy:
    """A tensor that an op of the graph makes."""

    op: int
    output: int


@dataclass(frozen=True)
class BufferValue:
    """A buffer of the module: resident, never sent."""

    path: str
    bytes: int


@dataclass(eq=False)
class ParameterValue:
    """A parameter, with the nodes that show it before an op first uses it."""

    path: str
    bytes: int
    shown: list[Node]  # the parameter, then views of it
    used: MadeBy | None = None  # the tensor of the parameter's op, which is added at the first use


@dataclass(eq=False)
class FilledValue:
    """A tensor whose values depend on no tensor, such as zeros: its first reader allocates it."""

    bytes: int
    read: bool = False
    used: MadeBy | None = None  # the output of its first reader that stands for its memory


@dataclass
class OpBuilder:
    """The op records that have been made so far, and what further ones depend on."""

    tf32: bool  # whether products of float32 compute in TF32
    attention: dict[Node, str] = field(default_factory=dict)  # see `written_attention`
    # as in graph files, with numbers in place of names of ops
    records: list[dict[str, Any]] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)
    values: dict[Node, Any] = field(default_factory=dict)  # MadeBy, tuple of it, one of the other kinds, or None
    counted: set[BufferValue] = field(default_factory=set)  # buffers whose bytes are counted with their first user
    together: UnionFind = field(default_factory=UnionFind)  # ops that are colocated
    labels: list[Label] = field(default_factory=list)  # where each op comes from
    random: set[int] = field(default_factory=set)  # ops that draw random numbers
    nodes: list[list[str]] = field(default_factory=list)  # names of the traced nodes behind each op
    casts: dict[tuple[Any, Any], Any] = field(default_factory=dict)  # (parameter, dtype) -> its copy, for all users
    repeated: list[bool] = field(default_factory=list)  # copies of views of parameters, which autocast doesn't keep
    read: list[tuple[int, int, BufferValue]] = field(
        default_factory=list
    )  # op, number of its inputs before, buffer read
    # tensor, as op and output, for the rest of a storage -> the tensor in this storage
    rests: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def add(
        self,
        node: Node,
        label: Label,
        kind: str,
        name: str,
        inputs: Sequence[MadeBy],
        outputs: Sequence[int],
        shared: bool = False,
    ) -> int:
        """Append an op for a traced node, and return its number; an op whose name is taken gets a suffix.

        Ops that aren't `shared` by all micro-batches belong to micro-batch 0.
        """
        self.names[name] += 1
        unique = name if self.names[name] == 1 else f"{name}_{self.names[name] - 1}"
        pairs = dict.fromkeys((t.op, t.output) for t in inputs)
        self.records.append(
            {"name": unique, "type": kind, "module": label.module, "inputs": list(pairs), "outputs": list(outputs)}
        )
        self.records[-1]["pass"] = label.part
        if not shared:
            self.records[-1]["micro_batch"] = 0
        self.labels.append(label)
        self.repeated.append(shared and node.op == "call_function" and not _is_whole(node.all_input_nodes[0]))
        self.nodes.append([node.name])
        return len(self.records) - 1

    def add_rests(self, op: int, node: Node, tensors: Sequence[Tensor]) -> None:
        """Append an output that no op reads for each tensor of an op whose storage is larger: for the rest of it."""
        outputs = self.records[op]["outputs"]
        if node.target is aten.copy.default:  # in place in eager PyTorch, into a part of a tensor
            return
        for output, tensor in enumerate(tensors):
            rest = tensor.untyped_storage().nbytes() - tensor_bytes(tensor)
            if rest:
                self.rests[op, len(outputs)] = op, output
                outputs.append(rest)

    def add_filled(self, op: int, node: Node) -> None:
        """Append an output that no op reads for each `FilledValue` that an op is the first to read.

        It takes no further memory if eager PyTorch puts the op's result there. Those that are smaller than the result,
        such as the first state of a recurrent layer, aren't counted.
        """
        outputs, into = self.records[op]["outputs"], is_in_place(node)
        for source in node.all_input_nodes:
            value = self.values.get(source)
            if isinstance(value, FilledValue) and not value.read:
                value.read = True
                if not (into and source is node.args[0]) and value.bytes >= outputs[0]:
                    value.used = MadeBy(op, len(outputs))
                    outputs.append(value.bytes)

    def cost(self, node: Node) -> dict[str, Any]:
        """The costs of a traced node as fields of an op record."""
        work, attention = float(flops(node)), node in self.attention
        number = self.attention[node] if attention else dtype(node)
        return {
            "signature": signature(node),
            "flops": work,
            "bytes_accessed": float(bytes_accessed(node)),
            "dtype": "tf32" if self.tf32 and work and in_tf32(node) and number == DEFAULT else number,
            "kernel": ATTENTION if attention else kernel(node),
        }

    def is_resident(self, tensor: MadeBy) -> bool:
        """Whether a tensor is a parameter, a part of one, or a gradient that is kept with its parameter."""
        record = self.records[tensor.op]
        return record["type"] == "parameter" or tensor.output in record.get("resident_outputs", ())


def is_in_place(node: Node) -> bool:
    """Whether eager PyTorch puts what a node makes into the memory of its first argument.

    A change of a part of a tensor is traced as an op on the part, and another one that puts the part into the whole.
    """
    packet, ran = packet_of(node), node.meta.get(RAN)
    name = getattr(packet, "__name__", "")
    if name.endswith("_scatter") and ran is not node.target:
        return True
    changes = ran is not None and ran._schema.is_mutable and ran.overloadpacket.__name__ in (name, f"{name}_")
    return changes or (node.meta["label"].backward and packet in _INTO_ZEROS)


def _is_whole(node: Node) -> bool:
    """Whether a node is a tensor of the module, or a view of it in its own shape, as a DTensor's local part is."""
    while node.target is torch.ops.aten.view.default:
        (seen,) = node.all_input_nodes
        if node.meta["val"].shape != seen.meta["val"].shape:
            return False
        node = seen
    return node.op == "placeholder"
