"""Where `torch.distributed.pipelining` can split a model so that its stages run, and train as the whole model does.

A split before a module is legal unless
- a parameter is read on both sides: each stage would train a copy, with a part of the gradient;
- the module is called more than once: every call would begin a stage;
- an input of the model is read behind it: only the first stage is given inputs;
- an output is made before it: only the last stage gives outputs.
A stage isn't legal if a tensor of an earlier stage is read both in it and behind it: the tensor's gradient would come
from two stages. A tensor without gradient may be read so.

Legend: N ops, U units.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.module_paths import LOSS
from placeto.problem.step.forward_pass import in_forward

_CALL = re.compile(r"@(\d+)/")
_NO_GRADIENT = {
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "isnan",
    "isinf",
    "argmax",
    "argmin",
    "argsort",
    "one_hot",
    "bucketize",
}
_NO_GRADIENT |= {f"{kind}_{what}" for kind in ("logical", "bitwise") for what in ("and", "or", "not", "xor")}


@dataclass(frozen=True, eq=False)
class Splits:
    """The legal stages, and the reasons against all others."""

    legal: np.ndarray  # (U+1, U+1) bool, whether the units a to b - 1 can be a stage, at [a, b]
    why: tuple[str, ...]  # clauses: the reasons against the others, first those against splits at one module
    at_once: int  # how many of the reasons are against splits at one module
    refused: bool  # whether one of these is about inputs or outputs of the model


def find_splits(graph: ComputationGraph, names: Sequence[str], unit: np.ndarray) -> Splits:
    """Find the legal stages of a graph.

    Args:
        graph: captured; its ops are in program order.
        names: (U,) units in program order.
        unit: (N,) int64, the unit of each op; -1 for ops between the units.
    """
    forward = first_forward(graph)
    run = np.flatnonzero(forward & (unit >= 0))
    begin = run[np.unique(unit[run], return_index=True)[1]]  # (U,) the first op of each
    reasons: dict[int, str] = {}  # unit -> why the model can't be split before it
    refused: set[int] = set()  # those of them before which torch would fail to split

    def forbid(after: int, until: int, why: str, fails: bool = True) -> None:
        """Forbid all splits between the op `after` and the later op `until`; `fails`: torch would fail there."""
        first, last = np.searchsorted(begin, (after, until), "right").tolist()
        for number in range(max(first, 1), last):
            reasons.setdefault(number, why)
            if fails:
                refused.add(number)

    reads: dict[tuple[int, int], list[int]] = defaultdict(list)  # (op, output) -> ops that read it
    loss: dict[int, list[int]] = defaultdict(list)
    for src, dst, output in zip(
        *(a.tolist() for a in (graph.edge_src, graph.edge_dst, graph.edge_output)), strict=True
    ):
        if forward[dst]:
            reads[src, output].append(dst)
        elif graph.modules[dst] == LOSS and forward[src]:
            loss[src].append(dst)
    of_unit = np.split(run[np.argsort(unit[run], kind="stable")], np.cumsum(np.bincount(unit[run]))[:-1])
    for number, name in enumerate(names):
        if number and called_again(graph, of_unit[number]):
            reasons[number] = f"{name} is called more than once"
    last_op = int(begin.max(initial=0))
    behind = int(run[-1])
    readers: dict[str, list[int]] = defaultdict(list)
    for op in np.flatnonzero(forward).tolist():
        for name in graph.module_inputs[op]:
            readers[name].append(op)
    for name, ops in readers.items():
        if min(ops) < behind or graph.mode != "training" or loss:  # else a target of the model's own loss
            where = graph.modules[max(ops)] or "the model itself"
            forbid(0, max(ops), f"{where} reads the model's input {name}")
    for (src, _), users in reads.items():
        if graph.op_types[src] == "parameter":
            first, last = min(users), max(users)
            who = " and ".join(dict.fromkeys(graph.modules[op] or "the model itself" for op in (first, last)))
            forbid(
                first,
                last,
                f"{who} {'read' if ' and ' in who else 'reads, in two calls,'} {graph.op_names[src]}",
                False,
            )
    read = {src for src, _ in reads}
    for op in np.flatnonzero(forward).tolist():
        if op in loss if graph.mode == "training" else op not in read:
            forbid(op, last_op, f"{graph.modules[op] or 'the model itself'} gives an output before the last stage")
    legal = np.ones((len(names) + 1, len(names) + 1), bool)
    for number in reasons:
        legal[number, :] = legal[:, number] = False
    why = dict.fromkeys(reasons.values())
    at_once = len(why)
    for (src, _), users in reads.items() if graph.mode == "training" else ():
        if forward[src] and graph.op_types[src].rpartition(".")[2] not in _NO_GRADIENT:
            made, *segments = (int(np.searchsorted(begin, op, "right")) - 1 for op in (src, *sorted(users)))
            for segment in segments:
                if made < segment < segments[-1]:
                    legal[made + 1 : segment + 1, segment + 1 : segments[-1] + 1] = False
                    where = " and ".join(names[number] for number in (segment, segments[-1]))
                    why[f"what {names[max(made, 0)]} makes is read in two later stages, beside {where}"] = None
    return Splits(legal, tuple(why), at_once, bool(refused))


def first_forward(graph: ComputationGraph) -> np.ndarray:
    """(N,) bool, whether an op is in the forward pass of the first micro-batch; parameters and the loss are not."""
    first = graph.micro_batches <= 0
    return in_forward(graph) & first & np.array([module != LOSS for module in graph.modules])


def called_again(graph: ComputationGraph, ops: np.ndarray) -> bool:
    """Whether each module of a unit is called more than once; `ops` are the unit's ops in the forward pass."""
    calls: dict[str, int] = {}
    for op in ops.tolist():
        path = graph.modules[op]
        call = _CALL.match(graph.op_names[op].removeprefix(path))
        calls[path] = max(calls.get(path, 0), int(call[1]) if call else 0)
    return min(calls.values(), default=0) > 0
