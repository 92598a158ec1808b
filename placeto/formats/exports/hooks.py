"""Which modules must share a device so that `accelerate` can run a model that is divided between devices.

accelerate's hooks move the arguments of each module of the device map to that module's device. They move the arguments
of the whole model, and its own parameters and buffers, to the map's first device. Nothing else is moved. An op between
two modules runs where its inputs are, so all its inputs must be on one device. Parameters and buffers that belong
directly to a divided module would stay where they were loaded, so such a module stays whole.

Legend: N ops, U units.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from placeto.formats.exports.units import numbered, paths_of, tensor_names
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.labels import TENSORS
from placeto.problem.graph.module_paths import LOSS, holders, inside, unit_of
from placeto.problem.step.forward_pass import in_forward

if TYPE_CHECKING:
    from torch import nn

_LARGE = 0.5  # a module with more than this share of the model is divided: whole, it would leave other devices idle
_LOSSES = ("nll_loss", "cross_entropy")  # models that compute such a loss themselves move the loss's targets


@dataclass(frozen=True)
class Join:
    """The numbers of two units that must share a device, and why."""

    one: int
    other: int
    why: str  # a sentence


@dataclass(frozen=True, eq=False)
class Units:
    """The units and their ops. Number U stands for the model itself: its own tensors, and its inputs."""

    names: tuple[str, ...]  # (U,) module paths, in the order of their first op
    unit: np.ndarray  # (N,) int64, the unit of each op; -1 for ops between units: of the whole model, or of the loss
    joined: np.ndarray  # (U+1,) int64, the first of the units with which each must share a device; often itself
    where: np.ndarray  # (N,) int64, the number in `joined` with which an op has to run; -1 if it runs where inputs are
    own: tuple[str, ...]  # parameters and buffers of the model itself
    joins: tuple[Join, ...]
    whole: dict[str, str]  # module that stays whole because of accelerate -> the reason, a sentence
    borrowed: dict[str, str]  # parameter that another module than its own reads -> this module


def module_units(graph: ComputationGraph, whole: Sequence[str] = (), module: nn.Module | None = None) -> Units:
    """Find the units of a graph, and those that must share a device.

    Args:
        graph: captured, so that its ops have modules.
        whole: paths of modules that are to stay whole, in addition to the blocks.
        module: the module that was captured; graphs of older versions lack some of its parameters and buffers.

    Raises:
        ExportError: the graph has no modules, or lacks one that is to stay whole.
    """
    groups = _same_tensors(graph, module)
    paths = paths_of(graph, whole, (name for group in groups for name in group))
    holding = holders(paths)
    kept: dict[str, str] = dict.fromkeys(whole, "")
    for name in (name for group in groups for name in group):
        owner = name.rpartition(".")[0]
        if owner in holding and owner not in kept:
            kept[owner] = f"{owner} stays whole: accelerate wouldn't move {name}, which is in none of its modules"
    while True:
        of_path = {path: unit_of(path, kept) for path in paths}
        names = set(of_path.values())
        outer = names & holders(names)
        search = _Search(graph, *numbered(graph, {p: u for p, u in of_path.items() if u not in outer}), of_path)
        undivided = search.run(groups)
        if not undivided:
            return search.units({path: why for path, why in kept.items() if why})
        kept |= undivided


def with_whole_modules(graph: ComputationGraph, units: Units) -> ComputationGraph:
    """Return the graph with the ops of each unit, and of units that must share a device, colocated."""
    colocation = graph.colocation.copy()
    root: dict[int, int] = {}  # colocation group of the graph -> unit
    group = units.where
    for op in np.flatnonzero(group >= 0).tolist():
        if colocation[op] >= 0:
            root.setdefault(int(colocation[op]), int(group[op]))
    first = len(units.joined)
    for op in range(graph.num_ops):
        if group[op] >= 0:
            colocation[op] = group[op]
        elif colocation[op] >= 0:
            colocation[op] = root.get(int(colocation[op]), first + int(colocation[op]))
    _, renumbered = np.unique(colocation[colocation >= 0], return_inverse=True)
    colocation[colocation >= 0] = renumbered
    return replace(graph, colocation=colocation)


def _same_tensors(graph: ComputationGraph, module: nn.Module | None) -> list[list[str]]:
    """Return the lists of names of all parameters and buffers: one list a tensor, which may have several names."""
    by_name: dict[str, list[str]] = {}
    for name, kind, others in zip(graph.op_names, graph.op_types, graph.module_tensors, strict=True):
        for group in [[name, *others]] if kind in TENSORS else [[other] for other in others]:
            for other in group:
                by_name.setdefault(other, group)
    if module is not None:
        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        by_id: dict[int, list[str]] = defaultdict(list)
        for name, tensor in named:
            by_id[id(tensor)].append(name)
        by_name = {name: by_id[id(tensor)] for name, tensor in named}
    return list({id(group): group for group in by_name.values()}.values())


@dataclass(eq=False)
class _Search:
    """The search for the unit with which accelerate runs each op, and for units that must share a device."""

    graph: ComputationGraph
    names: tuple[str, ...]
    unit: np.ndarray
    of_path: dict[str, str]
    joins: list[Join] = field(default_factory=list)
    undivided: dict[str, str] = field(default_factory=dict)
    own: list[str] = field(default_factory=list)
    borrowed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.number = {name: number for number, name in enumerate(self.names)}
        self.root = len(self.names)
        self.leader = list(range(self.root + 1))
        self.where = np.full(self.graph.num_ops, -1, np.int64)

    def run(self, groups: Sequence[Sequence[str]]) -> dict[str, str]:
        """Join the units that must share a device; return the modules that should stay whole instead -> the reasons.

        Args:
            groups: the names of each parameter and buffer.
        """
        graph = self.graph
        for group in groups:
            self.own += [name for name in group if "." not in name]
            for name in group[1:]:
                self.join(self.owner(group[0]), self.owner(name), f"{group[0]} and {name} are one tensor")
        if not any(graph.module_tensors) and not any(graph.module_inputs):
            self.join_readers()
        forward, buffers = in_forward(graph), tensor_names(graph)
        read: dict[int, list[str]] = defaultdict(list)
        for name, ops in buffers.items():
            for op in ops:
                if graph.op_types[op] not in TENSORS:
                    read[op].append(name)
        for op in graph.topological_order.tolist():
            if graph.op_types[op] in TENSORS:
                self.where[op] = self.owner(graph.op_names[op]) if self.unit[op] < 0 else self.unit[op]
                continue
            if forward[op]:
                self.note_borrowed(op, graph.reads[op])
            if self.unit[op] >= 0:
                self.where[op] = self.unit[op]
            elif forward[op] and (graph.modules[op] != LOSS or LOSS in self.of_path):
                self.between(op, graph.reads[op], read.get(op, ()))
        return self.undivided

    def between(self, op: int, producers: Sequence[int], buffers: Sequence[str]) -> None:
        """Find where an op of a divided module runs, which is where its inputs are.

        If its inputs are of several units, join these units, or note that the module should stay whole.
        """
        graph, path = self.graph, self.graph.modules[op]
        sources: dict[int, bool] = {}  # unit -> whether an argument of the module comes from it
        for producer in producers:
            if self.where[producer] >= 0:
                argument = graph.op_types[producer] != "parameter" and not inside(graph.modules[producer], path)
                sources.setdefault(int(self.where[producer]), bool(path) and argument)
        sources |= {self.owner(name): False for name in buffers}
        if graph.module_inputs[op]:
            sources.setdefault(self.root, bool(path))
        a_loss = any(loss in graph.op_types[op] for loss in _LOSSES)
        if not a_loss and len({self.find(source) for source in sources}) > 1:
            first, *others = sources
            what = graph.op_types[op].rpartition(".")[2]
            if any(sources.values()) and self.may_stay_whole(path):
                self.undivided[path] = f"{path} stays whole: {what} in it combines its argument with what it computes"
            else:
                for other in others:
                    self.join(first, other, f"{what} in {path or 'the model itself'} reads what both give")
        self.where[op] = next(iter(sources), -1)

    def may_stay_whole(self, path: str) -> bool:
        """Whether a module contains no list of blocks, and at most half of the model's FLOPs and of its parameters."""
        graph = self.graph
        rest = [other.removeprefix(path) for other in self.of_path if inside(other, path)]
        if any(part.isdigit() for name in rest for part in name.split(".")):
            return False
        within = np.array([inside(module, path) for module in graph.modules])
        shares = [float(work[within].sum()) / (float(work.sum()) or 1.0) for work in (graph.flops, graph.param_bytes)]
        return max(shares) <= _LARGE

    def note_borrowed(self, op: int, producers: Sequence[int]) -> None:
        """Note each parameter that an op of another module reads: it is no argument, so that no hook moves it."""
        graph = self.graph
        for producer in producers:
            if graph.op_types[producer] == "parameter":
                names = (graph.op_names[producer], *graph.module_tensors[producer])
                if all(name.rpartition(".")[0] not in ("", graph.modules[op]) for name in names):
                    self.borrowed.setdefault(names[0], graph.modules[op])

    def join_readers(self) -> None:
        """Join units that read the same parameter, in graphs of older versions, which lack second names of tensors."""
        graph = self.graph
        for src, dst in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
            if graph.op_types[src] == "parameter" and self.unit[src] >= 0 and self.unit[dst] >= 0:
                self.join(int(self.unit[src]), int(self.unit[dst]), f"both read {graph.op_names[src]}")

    def owner(self, name: str) -> int:
        """Return the unit of a parameter or buffer, by its name."""
        path = name.rpartition(".")[0]
        return self.number[self.of_path[path]] if path else self.root

    def say(self, unit: int) -> str:
        """Return the name of a unit, for reasons."""
        return self.names[unit] if unit < self.root else "the model's own tensors and inputs"

    def find(self, unit: int) -> int:
        """Return the first of the units that are joined with a unit."""
        while self.leader[unit] != unit:
            self.leader[unit] = unit = self.leader[self.leader[unit]]
        return unit

    def join(self, one: int, other: int, why: str) -> None:
        """Join two units that must share a device, and all units that are joined with them."""
        first, second = sorted((self.find(one), self.find(other)))
        if first != second:
            self.leader[second] = first
            self.joins.append(Join(one, other, f"{self.say(one)} and {self.say(other)} share a device: {why}"))

    def units(self, whole: dict[str, str]) -> Units:
        """Return what was found; `whole` has the modules that stay whole because of accelerate, with the reasons."""
        joined = np.array([self.find(unit) for unit in range(self.root + 1)], np.int64)
        where = np.where(self.where >= 0, joined[self.where], -1)
        return Units(
            self.names,
            self.unit,
            joined,
            where,
            tuple(dict.fromkeys(self.own)),
            tuple(self.joins),
            whole,
            self.borrowed,
        )
