"""Modules as wholes: which of them must share a device so that `accelerate` can run a model on several devices.

accelerate's hooks move the arguments of each module of the device map to that module's device. They move the arguments
of the whole model, and its own parameters and buffers, to the map's first device. Nothing else is moved. An op between
two modules runs where its inputs are, so all its inputs must be on one device. Parameters and buffers that belong
directly to a divided module would stay where they were loaded, so such a module stays whole.

So a module shares a device with modules that call it without containing it, as nothing moves to them what it returns.
It also shares one with those whose tensors it changes in place, as a copy would be changed, or reads without getting
them as arguments. But a module without tensors that others call gets no entry in a map: it runs where it is called.

Each module gets copies of the lists and mappings in its arguments, on any device. So a model is on one device as a
whole, where accelerate has no hooks, if it computes something else on copies: if one is changed that others see.

Units are modules that are placed as a whole: the blocks of a model, and the modules beside them.

Legend: N ops, U units.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from networkx.utils import UnionFind

from placeto.errors import PlanError
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.label_values import TENSORS
from placeto.problem.graph.module_paths import LOSS, holders, inside, unit_of
from placeto.problem.step.borders import no_modules
from placeto.problem.step.forward_pass import in_forward

_LARGE = 0.5  # a module with more than this share of the model is divided: whole, it would leave other devices idle
_SHARED = "{} changes a tensor of {} in place, or reads one that is no argument"
_LOST = "{} is given a list or a mapping that is changed, and accelerate gives it a copy"
_LOSSES = ("nll_loss", "cross_entropy")  # models that compute such a loss themselves move the loss's targets


@dataclass(frozen=True, eq=False)
class Units:
    """The units and their ops. The last unit stands for the model itself: its own tensors, and its inputs."""

    names: tuple[str, ...]  # (U,) module paths, in the order of their first op; "" is the model itself
    unit: np.ndarray  # (N,) int64, the unit of each op; -1 for ops between units: of the whole model, or of the loss
    joined: np.ndarray  # (U,) int64, one of the units with which each must share a device, the same for all of them
    where: np.ndarray  # (N,) int64, the number in `joined` with which an op has to run; -1 if it runs where inputs are
    own: tuple[str, ...]  # parameters and buffers of the model itself
    joins: tuple[tuple[int, int, str], ...]  # two units that must share a device, and why, a sentence
    whole: dict[str, str]  # module that stays whole because of accelerate -> the reason, a sentence
    borrowed: dict[str, str]  # parameter that another module than its own reads -> this module


def module_units(graph: ComputationGraph, whole: Sequence[str] = ()) -> Units:
    """Find the units of a graph, and those that must share a device.

    Args:
        graph: captured, so that its ops have modules.
        whole: paths of modules that are to stay whole, in addition to the blocks.

    Raises:
        PlanError: the graph has no modules, or lacks one that is to stay whole.
    """
    groups = _same_tensors(graph)
    tensors = [name for group in groups for name in group]
    paths = paths_of(graph, whole, tensors)
    holding = holders(paths)
    kept: dict[str, str] = dict.fromkeys(whole, "")
    for name in tensors:
        owner = name.rpartition(".")[0]
        if owner in holding and owner not in kept:
            kept[owner] = f"{owner} stays whole: accelerate wouldn't move {name}, which is in none of its modules"
    while (search := _Search(graph, paths, kept, groups)).undivided:
        kept |= search.undivided
    joined = np.array([search.together[unit] for unit in range(len(search.names))], np.int64)
    return Units(
        search.names,
        search.unit,
        joined,
        np.where(search.where >= 0, joined[search.where], -1),
        tuple(dict.fromkeys(name for name in tensors if "." not in name)),
        tuple(search.joins),
        {path: why for path, why in kept.items() if why},
        search.borrowed,
    )


def whole_modules(graph: ComputationGraph, whole: Sequence[str] = ()) -> ComputationGraph:
    """Return the graph with all ops colocated that a device map keeps together, so that every placer keeps them so.

    Raises:
        PlanError: the graph has no modules, or lacks one of `whole`.
    """
    units = module_units(graph, whole)
    color, group = graph.colocation, units.where.copy()
    home = np.full(int(color.max(initial=-1)) + 2, -1)  # group of each color's first op that has one; the last is -1
    both = np.flatnonzero((color >= 0) & (group >= 0))[::-1]
    home[color[both]] = group[both]
    group = np.where(group < 0, home[color], group)
    group = np.where((group < 0) & (color >= 0), len(units.names) + color, group)
    group[group >= 0] = np.unique(group[group >= 0], return_inverse=True)[1]
    return replace(graph, colocation=group)


def paths_of(graph: ComputationGraph, whole: Sequence[str] = (), tensors: Iterable[str] = ()) -> list[str]:
    """Return the paths of the modules that compute or have parameters or buffers, without the model itself.

    Args:
        graph: captured, so that its ops have modules.
        whole: paths of modules that are to stay whole.
        tensors: names of parameters and buffers, of modules that may compute nothing.

    Raises:
        PlanError: the graph has no modules, or lacks one that is to stay whole.
    """
    owners = [name.rpartition(".")[0] for name in tensors]
    paths = [path for path in dict.fromkeys((*graph.modules, *owners)) if path and (path != LOSS or path in owners)]
    if not paths:
        raise PlanError(f"{graph.name}: {no_modules(graph)}")
    for path in whole:
        if not any(inside(other, path) for other in paths):
            raise PlanError(f"{graph.name} has no module {path!r}; there are {', '.join(paths[:8])}, ...")
    return paths


def _same_tensors(graph: ComputationGraph) -> list[list[str]]:
    """Return the lists of names of all parameters and buffers: one list a tensor, which may have several names."""
    by_name: dict[str, list[str]] = {}
    for name, kind, others in zip(graph.op_names, graph.op_types, graph.module_tensors, strict=True):
        for group in [[name, *others]] if kind in TENSORS else [[other] for other in others]:
            for other in group:
                by_name.setdefault(other, group)
    return list({id(group): group for group in by_name.values()}.values())


class _Search:
    """The search for the unit with which accelerate runs each op, and for units that must share a device.

    Args:
        graph: captured.
        paths: of all modules that compute or have parameters or buffers.
        kept: paths of the modules that stay whole.
        groups: the names of each parameter and buffer.
    """

    def __init__(
        self, graph: ComputationGraph, paths: Iterable[str], kept: Iterable[str], groups: Sequence[Sequence[str]]
    ) -> None:
        self.graph, self.kept, order = graph, tuple(kept), graph.topological_order.tolist()
        self.holding = holders(name for group in groups for name in group)  # modules that have tensors
        of_path = self.of_path = {path: unit_of(path, self.kept) for path in paths}
        called = {of_path[path] for path, callers in zip(graph.modules, graph.called_in, strict=True) if callers}
        for path in [path for path, unit in of_path.items() if unit in called - self.holding]:
            del of_path[path]
        outer = holders(of_path.values())
        ordered = sorted(order, key=lambda op: graph.op_types[op] in TENSORS)
        units = (of_path.get(path, "") for path in (*(graph.modules[op] for op in ordered), *of_path))
        self.names = (*(name for name in dict.fromkeys(units) if name and name not in outer), "")
        self.number, self.root = {name: number for number, name in enumerate(self.names)}, len(self.names) - 1
        runs = list(zip(graph.modules, graph.called_in, strict=True))
        unit = {each: self.unit_at(*each) for each in dict.fromkeys(runs)}
        self.unit = np.array([unit[each] for each in runs])
        tensor = np.array([kind in TENSORS for kind in graph.op_types])
        self.where = np.where(tensor & (self.unit < 0), self.root, self.unit)
        self.together: UnionFind[int] = UnionFind(range(len(self.names)))
        self.joins, self.undivided, self.borrowed = list[tuple[int, int, str]](), dict[str, str](), dict[str, str]()
        for group in groups:
            for name in group[1:]:
                self.join(self.owner(group[0]), self.owner(name), f"{group[0]} and {name} are one tensor")
        forward = in_forward(graph)
        for op in order:
            if forward[op]:
                self.share(op)
                self.read_parameters(op)
                if self.where[op] < 0 and (graph.modules[op] != LOSS or LOSS in of_path):
                    self.between(op)

    def unit_at(self, path: str, callers: Sequence[str] = ()) -> int:
        """Return the unit in which a module runs that is called in others; -1 if it is divided, or the model itself."""
        found = self.number.get(unit_of(path, self.kept), -1) if path else -1
        if not callers or path in self.holding:
            return found
        return next((unit for caller in reversed(callers) if (unit := self.unit_at(caller)) >= 0), -1)

    def share(self, op: int) -> None:
        """Join the unit of an op with those that call it, and with those that made what it changes in place.

        If what it changes would be a copy on any device, all units are joined.
        """
        path, unit = self.graph.modules[op], int(self.unit[op])
        if unit < 0:
            return
        for caller in self.graph.called_in[op]:
            if (other := self.unit_at(caller)) >= 0:
                self.join(other, unit, f"{path} is called in {caller}")
        for maker in self.graph.shared_with[op]:
            if maker == path:
                for other in range(len(self.names)):
                    self.join(other, unit, _LOST.format(self.names[unit]))
            elif (other := self.unit_at(maker) if maker else self.root) >= 0:
                self.join(other, unit, _SHARED.format(path, maker or "the model itself"))

    def read_parameters(self, op: int) -> None:
        """Note the parameters of other modules that an op reads: they are no arguments, so that no hook moves them."""
        graph = self.graph
        for producer in graph.reads[op]:
            if graph.op_types[producer] == "parameter":
                names = (graph.op_names[producer], *graph.module_tensors[producer])
                if all(name.rpartition(".")[0] not in ("", graph.modules[op]) for name in names):
                    self.borrowed.setdefault(names[0], graph.modules[op])
                if min(self.unit[producer], self.unit[op]) >= 0:
                    self.join(int(self.unit[producer]), int(self.unit[op]), f"both read {names[0]}")

    def between(self, op: int) -> None:
        """Find where an op of a divided module runs, which is where its inputs are.

        If its inputs are of several units, join these units, or note that the module should stay whole.
        """
        graph, path = self.graph, self.graph.modules[op]
        sources: dict[int, bool] = {}  # unit -> whether an argument of the module comes from it
        for producer in graph.reads[op]:
            if self.where[producer] >= 0:
                argument = graph.op_types[producer] != "parameter" and not inside(graph.modules[producer], path)
                sources.setdefault(int(self.where[producer]), bool(path) and argument)
        sources |= {self.owner(name): False for name in graph.module_tensors[op]}
        sources |= {unit: False for caller in graph.called_in[op] if (unit := self.unit_at(caller)) >= 0}
        if graph.module_inputs[op]:
            sources.setdefault(self.root, bool(path))
        self.where[op] = next(iter(sources), -1)
        if any(loss in graph.op_types[op] for loss in _LOSSES) or len({self.together[unit] for unit in sources}) < 2:
            return
        what = graph.op_types[op].rpartition(".")[2]
        if path in self.of_path and any(sources.values()) and self.may_stay_whole(path):
            self.undivided[path] = f"{path} stays whole: {what} in it combines its argument with what it computes"
            return
        first, *others = sources
        for other in others:
            self.join(first, other, f"{what} in {path or 'the model itself'} reads what both give")

    def may_stay_whole(self, path: str) -> bool:
        """Whether a module contains no list of blocks, and at most half of the model's FLOPs and of its parameters."""
        graph = self.graph
        rest = [other.removeprefix(path) for other in self.of_path if inside(other, path)]
        if any(part.isdigit() for name in rest for part in name.split(".")):
            return False
        within = np.array([inside(module, path) for module in graph.modules])
        shares = [float(work[within].sum()) / (float(work.sum()) or 1.0) for work in (graph.flops, graph.param_bytes)]
        return max(shares) <= _LARGE

    def owner(self, name: str) -> int:
        """Return the unit of a parameter or buffer, by its name."""
        return self.number[self.of_path.get(name.rpartition(".")[0], "")]

    def join(self, one: int, other: int, why: str) -> None:
        """Join two units that must share a device, and all units that are joined with them."""
        if self.together[one] != self.together[other]:
            self.together.union(one, other)
            ends = " and ".join(self.names[unit] or "the model's own tensors and inputs" for unit in (one, other))
            self.joins.append((one, other, f"{ends} share a device: {why}"))
