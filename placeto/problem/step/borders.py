"""Where a model can be cut between two layers: the module at whose beginning or end, or the reason why it can't.

A tool that trains a pipeline (`torch.distributed.pipelining`, torch 2.13) cuts a model before or after a call of a
module. It gives the model's inputs to the first stage, takes the output and the loss from the last one, and trains a
copy of a parameter in each stage that reads it. It sends tensors between neighbouring stages only. The exported program
lets each stage compute tables that depend on no input and no weight: see `forward_pass.tables`.

Legend: N ops, L layers, T tensors, F ops of the forward pass of a micro-batch, without the loss and what follows from
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.label_values import NO_MICRO_BATCH, TENSORS
from placeto.problem.graph.module_paths import LOSS, around, inside
from placeto.problem.step.forward_pass import (
    ModuleSpan,
    before_loss,
    in_first,
    in_forward,
    inputs_read,
    module_spans,
    tables,
)

BEGINNING, END = "beginning", "end"
_NOWHERE = -1


@dataclass(frozen=True)
class Border:
    """The border between two neighbouring layers."""

    module: str = ""  # the module at whose beginning or end the model is cut here; "" if it can't be cut
    side: str = BEGINNING  # of the module: `BEGINNING` or `END`
    place: int = _NOWHERE  # place in the program (F,) of the first op behind the cut
    why: str = ""  # why the model can't be cut here, as a clause that says what to do; "" = it can


@dataclass(frozen=True, eq=False)
class Borders:
    """All borders of a graph's layers; border b is that before layer b + 1."""

    graph: ComputationGraph
    program: np.ndarray  # (F,) int64, ops of the first micro-batch's forward pass in program order
    border: tuple[Border, ...]  # (L-1,)
    why: str  # why a tool that trains pipelines can't run the graph, wherever it is cut; "" = it can
    tensors: np.ndarray  # (T, 2) those that cross several borders: the places where each is made, and read last

    def refusal(self, layers: Sequence[int]) -> str:
        """Return the reason why a tool can't train stages in the order of a plan; "" if it can.

        Args:
            layers: first layer of each stage but the first, ascending.
        """
        cuts = [self.border[layer - 1] for layer in layers]
        if self.why or not cuts:
            return self.why
        if why := next((cut.why for cut in cuts if cut.why), ""):
            return why
        stages = np.searchsorted([cut.place for cut in cuts], self.tensors, "right")
        if (far := np.diff(stages)[:, 0] > 1).any():
            maker, reader = self.tensors[int(far.argmax())].tolist()
            return (
                f"{self._name(maker)} is read by {self._name(reader)}, more than one stage later; torch sends to the "
                "next stage only: pass it on through the modules between, or use fewer stages"
            )
        modules = [cut.module for cut in cuts]
        if twice := next((module for module in modules if modules.count(module) > 1), ""):
            return f"{twice} alone would be a stage, which torch can't cut out: use fewer stages"
        return ""

    def _name(self, place: int) -> str:
        return self.graph.op_names[self.program[place]] if place < len(self.program) else "the loss"


def find_borders(graph: ComputationGraph, number: np.ndarray, busy: np.ndarray, num_layers: int) -> Borders:
    """Find where a graph can be cut between its layers.

    Args:
        graph: captured.
        number: (N,) layer of each op.
        busy: (N,) bool, the ops that take time.
        num_layers: L.
    """
    program = np.flatnonzero(before_loss(graph) & in_first(graph))
    if why := never_cut(graph):
        return Borders(graph, program, (Border(why=why),) * (num_layers - 1), why, np.empty((0, 2), np.int64))
    why = "" if busy[program].any() else _IDLE
    place = np.full(graph.num_ops, _NOWHERE, np.int64)
    place[program] = np.arange(len(program))
    computing = np.flatnonzero(busy[program])
    of_layer = number[program[computing]]
    last = np.full(num_layers, _NOWHERE)  # of each layer, place of its last op that takes time
    first = np.full(num_layers, len(program))
    np.maximum.at(last, of_layer, computing)
    np.minimum.at(first, of_layer, computing)
    last, first = np.maximum.accumulate(last), np.minimum.accumulate(first[::-1])[::-1]
    spans = module_spans(graph, program)
    facts = _Facts(graph, program, place)
    cuts = [_cut(graph, program, spans, *ends) for ends in zip(last[:-1].tolist(), first[1:].tolist(), strict=True)]
    borders = tuple(cut if cut.why else facts.checked(cut) for cut in cuts)
    return Borders(graph, program, borders, why, facts.tensors(sorted(cut.place for cut in borders if not cut.why)))


_IDLE = "no op of the forward pass takes time, so there are no stages: give its ops times"


def no_modules(graph: ComputationGraph) -> str:
    """Return the reason why a graph can't be divided by modules; "" if it can."""
    computing = [module for module in graph.modules if module and module != LOSS]
    if not computing:
        if any(kind in TENSORS for kind in graph.op_types):
            return (
                "it has no modules inside: all its parameters and ops are the model's own, so it can't be divided by "
                "modules: run it on one device, or make modules of parts"
            )
        return "it has no modules: only graphs that were captured from a module have them"
    return ""


def never_cut(graph: ComputationGraph) -> str:
    """Return the reason why no tool can train a graph in the stages of a plan; "" if there is none."""
    if why := no_modules(graph):
        return why
    if graph.mode != "training" or int(graph.micro_batches.max(initial=NO_MICRO_BATCH)) < 1:
        return "it is no training step in micro-batches: capture it with --micro-batches 2 or more"
    for path, callers in zip(graph.modules, graph.called_in, strict=True):
        if caller := next((caller for caller in callers if caller != LOSS), ""):
            return (
                f"{path} is called in {caller}, which doesn't contain it, and torch can't export such a model: make "
                f"{path} a part of {caller}, or call it in a module that contains both"
            )
    if LOSS not in graph.modules:
        return "the model computes its loss itself; let it return its output, and give a loss"
    for src, dst in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
        if graph.op_types[src] == "parameter" and graph.trained_bytes[src] and graph.modules[dst] == LOSS:
            return (
                f"the loss reads the trained parameter {graph.op_names[src]}; torch trains those that the stages read: "
                "read it in the model's last module"
            )
    forward = before_loss(graph)
    programs = {
        tuple(graph.modules[op] for op in np.flatnonzero(forward & (graph.micro_batches == number)).tolist())
        for number in range(int(graph.micro_batches.max()) + 1)
    }
    if len(programs) > 1:
        return (
            "its micro-batches don't all run the same modules, and torch runs one program for all: export a model that "
            "doesn't choose modules by its inputs"
        )
    return ""


def _cut(
    graph: ComputationGraph, program: np.ndarray, spans: Mapping[str, ModuleSpan], last: int, first: int
) -> Border:
    """Return where to cut a model between two places in its program (F,).

    The cut is before a module that begins between the two places or, if there is none, after one that ends there. Of
    several such modules it is the innermost one, since an outer one may be a list of modules, which is never called.

    Args:
        graph: captured.
        program: (F,) the ops of a micro-batch's forward pass in program order.
        spans: of the modules in the program.
        last: the place of the last op before the border that takes time.
        first: the place of the first op behind the border that takes time.
    """
    if first == len(program):
        return Border(why="behind it lies the loss alone, which torch computes with the stage before: use fewer stages")
    before, behind = (graph.modules[program[place]] for place in (last, first))
    if last < first:
        for near, far, side in ((behind, before, BEGINNING), (before, behind, END)):
            for module in reversed(around(near)):
                span = spans[module]
                place = span.first if side == BEGINNING else span.last + 1
                if not inside(far, module) and last < place <= first and span.unbroken and not span.again:
                    return Border(module, side, place)
    ends = (graph.op_names[program[place]] for place in (last, first))
    return Border(
        why=f"no module that is called once begins or ends between {' and '.join(ends)}; torch cuts a model there only"
    )


class _Facts:
    """What is read on both sides of a cut."""

    def __init__(self, graph: ComputationGraph, program: np.ndarray, place: np.ndarray) -> None:
        self.graph, self.forward = graph, in_forward(graph) & in_first(graph)
        end = len(program)
        self.place = np.where(self.forward & (place < 0), end, place)  # (N,) the loss is behind all of the program
        src, dst = graph.edge_src, graph.edge_dst
        between = self.forward[src] & self.forward[dst]
        self.edges = np.flatnonzero(between)
        self.of_complex = between & graph.complex[src] & ~tables(graph)[src]  # (E,) bool
        outputs = [int(src[e]) for e in self.edges if graph.modules[dst[e]] == LOSS and self.place[src[e]] < end]
        self.output = min(outputs, key=lambda op: int(self.place[op]), default=_NOWHERE)
        self.input = max((op for op in program.tolist() if inputs_read(graph, op)), default=_NOWHERE)
        of_loss = np.flatnonzero(self.forward & (self.place == end)).tolist()
        self.input_of_loss = next((name for op in of_loss for name in inputs_read(graph, op)), "")
        self.parameters = self._readers()

    def _readers(self) -> list[tuple[int, int, int]]:
        """Each trained parameter that is read in several places: its op, and the first and the last op that read it."""
        graph, shared = self.graph, []
        for op in np.flatnonzero(graph.trained_bytes).tolist():  # copies of others stay equal
            users, pending = list[int](), [op]
            while pending:
                for user in graph.readers[pending.pop()]:
                    if self.forward[user]:
                        users.append(user)
                    elif graph.micro_batches[user] == NO_MICRO_BATCH and graph.passes[user] == "forward":
                        pending.append(user)
            if len(users) > 1:
                ends = (choose(users, key=lambda user: int(self.place[user])) for choose in (min, max))
                shared.append((op, *ends))
        return shared  # type: ignore[return-value]

    def checked(self, cut: Border) -> Border:
        """Return the border with the reason why a tool can't cut there, if there is one."""
        graph, place = self.graph, self.place
        for parameter, first, last in self.parameters:
            if place[first] < cut.place <= place[last]:
                readers = [graph.modules[op] or "the model itself" for op in (first, last)]
                return replace(
                    cut,
                    why=f"{graph.op_names[parameter]} is read before it by {readers[0]} and behind it by {readers[1]}; "
                    "torch would train two copies of it: untie it, or use fewer stages",
                )
        crossing = (place[graph.edge_src] < cut.place) & (place[graph.edge_dst] >= cut.place) & self.of_complex
        if crossing.any():
            maker = graph.op_names[graph.edge_src[crossing.argmax()]]
            return replace(
                cut,
                why=f"{maker} before it makes complex numbers, of which torch passes no gradients between stages: pass "
                "on torch.stack((z.real, z.imag), -1)",
            )
        if self.input != _NOWHERE and place[self.input] >= cut.place:
            return replace(
                cut,
                why=f"behind it {graph.op_names[self.input]} reads the model's input "
                f"{inputs_read(graph, self.input)[0]}; torch gives inputs to the first stage only: pass it on through "
                "the modules before, or use fewer stages",
            )
        if self.input_of_loss:
            return replace(
                cut,
                why=f"the loss reads the model's input {self.input_of_loss}, which the model returns; torch gives it "
                "to the first stage only: give it to the loss as a target, or use fewer stages",
            )
        if self.output != _NOWHERE and place[self.output] < cut.place:
            return replace(
                cut,
                why=f"{graph.op_names[self.output]} before it is read by the loss; torch takes the output from the "
                "last stage only: pass it on through the modules behind, or use fewer stages",
            )
        return cut

    def tensors(self, cuts: Sequence[int]) -> np.ndarray:
        """(T, 2) the tensors that cross at least two of the places `cuts`: where each is made, and is read last.

        Tables are left out, as each stage computes those that it reads.
        """
        graph, ends = self.graph, dict[int, tuple[int, int]]()
        edges = self.edges[~tables(graph)[graph.edge_src[self.edges]]]
        src, dst, tensor = (array[edges] for array in (graph.edge_src, graph.edge_dst, graph.edge_tensor))
        for made, read, number in zip(*(a.tolist() for a in (self.place[src], self.place[dst], tensor)), strict=True):
            ends[number] = made, max(read, ends.get(number, (made, read))[1])
        places = np.array(list(ends.values()), np.int64).reshape(-1, 2)
        return places[np.diff(np.searchsorted(cuts, places, "right"))[:, 0] > 1]
