"""The stages and replicas in a placement of a step in micro-batches, as `torch.distributed.pipelining` runs them.

A placement file says where each op runs, but not which plan it comes from. So the stages are found from the placement:
in program order, a stage ends where a micro-batch's forward pass continues on another device. Micro-batches on the same
devices belong to one replica. torch (2.13) cuts a model before or after a call of a module, sends between neighbouring
stages only, gives the model's inputs to the first stage and takes the output from the last one. A placement that torch
can't run is refused here.

Legend: N ops, S stages, R replicas, M micro-batches, D devices, F ops of the forward pass of a micro-batch, the
loss aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placeto.formats.exports.splits import called_again
from placeto.formats.exports.units import LOSS, ExportError, in_forward, paths_of
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.labels import BACKWARD_PASSES, NO_MICRO_BATCH
from placeto.problem.graph.module_paths import around, inside
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule

BEGINNING, END = "beginning", "end"
PLACE = "place with --placer torch-pipeline"


@dataclass(frozen=True, eq=False)
class TorchStages:
    """S stages of contiguous modules on R replicas."""

    stage: np.ndarray  # (N,) int64, stage of each op; -1 for parameters, sums of gradients and the optimizer
    devices: tuple[tuple[int, ...], ...]  # (R, S) where each replica has each stage; a device may have several
    micro_batches: tuple[tuple[int, ...], ...]  # (R, M / R) those of each replica, in order
    splits: tuple[tuple[str, str], ...]  # (S-1,) the module at whose beginning or end each stage but the first begins
    modules: tuple[tuple[str, ...], ...]  # (S,) the outermost modules that run in each stage alone

    @property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """(R, P) the devices of each replica, in the cluster's order: the ranks of its process group."""
        return tuple(tuple(sorted(set(row))) for row in self.devices)


def torch_stages(schedule: Schedule) -> TorchStages:
    """Find the stages and replicas of a placed training step.

    Args:
        schedule: the schedule of the placement.

    Raises:
        ExportError: the step has no micro-batches, or torch can't run the placement; the message says where and why.
    """
    return stages_of(schedule.problem, schedule.placement)


def torch_refusal(problem: PlacementProblem, placement: np.ndarray) -> str:
    """Return the reason why torch can't run a placement (N,) of a training step; "" if it can."""
    try:
        stages_of(problem, placement)
    except ExportError as error:
        return str(error)
    return ""


def stages_of(problem: PlacementProblem, placement: np.ndarray) -> TorchStages:
    """Find the stages and replicas of a placement (N,), as `torch_stages` does for a schedule.

    Raises:
        ExportError: see `torch_stages`.
    """
    graph = problem.graph
    name = graph.name
    paths_of(graph)  # which refuses graphs without modules
    of = graph.micro_batches
    count = int(of.max(initial=NO_MICRO_BATCH)) + 1
    if graph.mode != "training" or count < 2:
        raise ExportError(f"{name} is no training step in micro-batches: capture it with --micro-batches 2 or more")
    if LOSS not in graph.modules:
        raise ExportError(f"{name}: the model computes its loss itself; let it return its output, and give a loss")
    _check_loss(graph)
    program = _forward_ops(graph, count)
    busy = problem.op_time[np.arange(len(of)), placement] > 0.0
    computing = np.flatnonzero(busy[program[0]])  # (C,) places in the program (F,)
    if not len(computing):
        raise ExportError(f"{name}: no op of the forward pass takes time, so there are no stages: give its ops times")
    _check_first(graph, program[0, computing], placement)
    starts, devices = _runs(graph, program[:, computing], placement)
    replicas, groups = replicas_of(name, devices, problem.cluster.device_names)
    splits, cuts = [], []
    for border in starts[1:].tolist():
        split, cut = _split(graph, program[0], int(computing[border - 1]), int(computing[border]))
        splits.append(split)
        cuts.append(cut)
    if twice := {split for split, _ in splits if sum(other == split for other, _ in splits) > 1}:
        raise ExportError(f"{name}: {min(twice)} alone is a stage, which torch can't cut out: {PLACE}")
    stage = np.full(len(of), -1, np.int64)
    stage[program] = np.searchsorted(cuts, np.arange(program.shape[1]), side="right")
    _others(graph, placement, stage, replicas[groups])
    _check(graph, stage)
    return TorchStages(
        stage,
        tuple(map(tuple, replicas.tolist())),
        tuple(tuple(np.flatnonzero(groups == replica).tolist()) for replica in range(len(replicas))),
        tuple(splits),
        _named(graph, program[0], stage),
    )


def _forward_ops(graph: ComputationGraph, count: int) -> np.ndarray:
    """Return the ops of each micro-batch's forward pass (M, F) in program order, without the loss and ops after it.

    Raises:
        ExportError: micro-batches run different modules.
    """
    forward = in_forward(graph)
    behind = np.array([module == LOSS for module in graph.modules])
    for src, dst in sorted(zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True)):
        behind[dst] |= behind[src]  # ops of a captured graph are in program order
    ops = [np.flatnonzero(forward & ~behind & (graph.micro_batches == number)) for number in range(count)]
    modules = [[graph.modules[op] for op in row.tolist()] for row in ops]
    if other := next((number for number in range(count) if modules[number] != modules[0]), 0):
        raise ExportError(
            f"{graph.name}: micro-batch {other} doesn't run the same modules as the first one, and torch runs one "
            "program for all: export a model that doesn't choose modules by its inputs"
        )
    return np.array(ops)


def _runs(graph: ComputationGraph, ops: np.ndarray, placement: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each stage begins (S,), as a place among the C ops that compute, and its devices (M, S).

    Args:
        graph: captured.
        ops: (M, C) the ops of each micro-batch's forward pass that take time, in program order.
        placement: (N,) the device of each op.

    Raises:
        ExportError: micro-batches change their device at different ops.
    """
    where = placement[ops]
    changes = where[:, 1:] != where[:, :-1]
    if not (changes == changes[0]).all():
        micro_batch, border = (int(index) for index in np.argwhere(changes != changes[0])[0])
        at = graph.op_names[ops[0, border + 1]]
        raise ExportError(
            f"{graph.name}: at {at} micro-batch 0 {_goes_on(changes[0, border])}, micro-batch {micro_batch} "
            f"{_goes_on(changes[micro_batch, border])}; torch runs the same stages for all: {PLACE}"
        )
    starts = np.append(0, np.flatnonzero(changes[0]) + 1)
    return starts, where[:, starts]


def _goes_on(changes: bool) -> str:
    return "goes on on another device" if changes else "stays on its device"


def replicas_of(
    name: str, devices: np.ndarray, names: Sequence[str], tool: str = "torch", instead: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the devices of each replica (R, S), and the replica of each micro-batch (M,).

    Args:
        name: the name of the graph, for messages.
        devices: (M, S) where each micro-batch has each stage.
        names: (D,) the names of the devices, for messages.
        tool: the name of the tool that runs the stages, for messages.
        instead: how to place for a tool that doesn't train, for messages.

    Raises:
        ExportError: replicas share a device, or run different numbers of micro-batches.
    """
    first = dict.fromkeys(map(tuple, devices.tolist()))
    replicas = np.array(list(first), np.int64)
    groups = np.array([list(first).index(tuple(row)) for row in devices.tolist()])
    shared = [device for device in np.unique(devices).tolist() if (replicas == device).any(axis=1).sum() > 1]
    if shared:
        raise ExportError(
            f"{name}: {names[shared[0]]} runs micro-batches that differ in the devices of another stage; {tool} needs "
            f"replicas that share no device, with equally many of each stage: {instead or PLACE}"
        )
    each = np.bincount(groups)
    if each.min() < each.max():
        more = f"choose a number of --micro-batches that {len(each)} divides, on devices of one speed"
        raise ExportError(
            f"{name}: replicas run {each.min()} to {each.max()} micro-batches, {tool} needs equally many: "
            f"{instead or more}"
        )
    return replicas, groups


def _split(graph: ComputationGraph, program: np.ndarray, last: int, first: int) -> tuple[tuple[str, str], int]:
    """Return where to cut a model between two places in its program (F,), and the place where the later stage begins.

    The cut is before a module that begins between the two places or, if there is none, after one that ends there. Of
    several such modules it is the innermost one, since an outer one may be a list of modules, which is never called.
    All ops between the two places take no time.

    Args:
        graph: captured.
        program: (F,) the ops of a micro-batch's forward pass in program order.
        last: the place of the last op of the earlier stage that takes time.
        first: the place of the first op of the later stage that takes time.

    Raises:
        ExportError: no module that is called once begins or ends between the two places.
    """
    paths = [graph.modules[op] for op in program.tolist()]
    before, behind = paths[last], paths[first]
    for here, there, where in ((behind, before, BEGINNING), (before, behind, END)):
        for module in reversed(around(here)):
            own = [place for place, path in enumerate(paths) if inside(path, module)]
            cut = own[0] if where == BEGINNING else own[-1] + 1
            once = own[-1] - own[0] + 1 == len(own) and not called_again(graph, program[own])
            if not inside(there, module) and last < cut <= first and once:
                return (module, where), cut
    one, other = (graph.op_names[program[place]] for place in (last, first))
    raise ExportError(
        f"{graph.name}: {one} and {other} run on different devices, but no module that is called once begins or ends "
        f"between them; torch cuts a model there only: {PLACE}"
    )


def _others(graph: ComputationGraph, placement: np.ndarray, stage: np.ndarray, devices: np.ndarray) -> None:
    """Fill in, in `stage`, the last stage for the ops of the loss, and the stage of each op of a backward pass.

    An op of the backward pass belongs to a stage that runs its module. If it reads gradients, these come from its own
    stage or from later ones: so it belongs to the last such stage that isn't later than any of them. If it reads only
    other tensors, these come from its own stage or from earlier ones: so it belongs to the first such stage that isn't
    earlier than any of them. In both cases, stages on the op's own device are preferred.
    """
    stages = set(range(devices.shape[1]))
    last = max(stages)
    reads, readers = graph.reads, graph.readers
    of_module: dict[str, set[int]] = {LOSS: {last}}
    for op in np.flatnonzero(stage >= 0).tolist():
        of_module.setdefault(graph.modules[op], set()).add(int(stage[op]))
    backward = [kind in BACKWARD_PASSES for kind in graph.passes]
    for op in graph.topological_order.tolist():
        if stage[op] >= 0 or graph.micro_batches[op] == NO_MICRO_BATCH:
            continue
        made = [int(stage[src]) for src in reads[op] if stage[src] >= 0]
        gradients = [int(stage[src]) for src in reads[op] if stage[src] >= 0 and backward[src]]
        able = of_module.get(graph.modules[op], stages)
        here = {number for number in able if devices[graph.micro_batches[op], number] == placement[op]}
        if not backward[op]:
            stage[op] = last
        elif gradients:
            bound = min(gradients)
            stage[op] = max([n for n in here if n <= bound] or [n for n in able if n <= bound], default=bound)
        elif made:
            bound = max(made)
            stage[op] = min([n for n in here if n >= bound] or [n for n in able if n >= bound], default=bound)
    for op in graph.topological_order[::-1].tolist():
        if stage[op] < 0 and graph.micro_batches[op] != NO_MICRO_BATCH:  # it reads nothing that the step makes
            stage[op] = max((int(stage[reader]) for reader in readers[op]), default=last)


def _check_loss(graph: ComputationGraph) -> None:
    """Refuse a loss that reads a trained parameter."""
    for src, dst in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
        if graph.op_types[src] == "parameter" and graph.trained_bytes[src] and graph.modules[dst] == LOSS:
            raise ExportError(
                f"{graph.name}: the loss reads the trained parameter {graph.op_names[src]}; torch trains those that "
                "the stages read: read it in the model's last module"
            )


def _check(graph: ComputationGraph, stage: np.ndarray) -> None:
    """Refuse tensors, parameters, inputs and outputs that torch doesn't bring to where they are needed."""
    name, first = graph.name, graph.micro_batches == 0
    forward = in_forward(graph) & first
    for src, dst in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
        if forward[src] and forward[dst] and not 0 <= stage[dst] - stage[src] <= 1:
            one, other = graph.op_names[src], graph.op_names[dst]
            raise ExportError(
                f"{name}: {one} of stage {stage[src]} is read by {other} of stage {stage[dst]}; torch sends to the "
                "next stage only: pass it on through the modules between, or place on fewer devices"
            )
        if forward[src] and forward[dst] and graph.modules[dst] == LOSS and stage[src] < stage[dst]:
            raise ExportError(
                f"{name}: {graph.op_names[src]} of stage {stage[src]} is read by the loss; torch takes the output from "
                "the last stage only: pass it on through the modules behind, or place on fewer devices"
            )
    for op in np.flatnonzero(forward).tolist():
        if graph.module_inputs[op] and stage[op] > 0 and graph.modules[op] != LOSS:
            raise ExportError(
                f"{name}: {graph.op_names[op]} of stage {stage[op]} reads the model's input "
                f"{graph.module_inputs[op][0]}; torch gives inputs to the first stage only: pass it on through the "
                "modules before, or place on fewer devices"
            )
    _check_parameters(graph, stage, forward)


def _check_first(graph: ComputationGraph, ops: np.ndarray, placement: np.ndarray) -> None:
    """Refuse a tied parameter that several stages read, considering the ops (C,) of a micro-batch that take time.

    This is checked first, because with such a parameter no other cut between its users is better.
    """
    stage = np.full(graph.num_ops, -1, np.int64)
    stage[ops] = np.cumsum(np.append(False, placement[ops][1:] != placement[ops][:-1]))
    _check_parameters(graph, stage, stage >= 0, tied=True)


def _check_parameters(graph: ComputationGraph, stage: np.ndarray, forward: np.ndarray, tied: bool = False) -> None:
    """Refuse a parameter that ops of the forward pass read in two stages; with `tied`, only if two modules read it.

    Args:
        graph: captured.
        stage: (N,) the stage of each op.
        forward: (N,) bool, the ops of the forward pass to consider.
        tied: whether a parameter that only one module reads is accepted.
    """
    users: dict[int, list[int]] = {}  # op -> ops that read it; among them are those of slices of parameters
    for src, dst in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
        users.setdefault(src, []).append(dst)
    for op in (op for op, kind in enumerate(graph.op_types) if kind == "parameter"):
        found: dict[int, str] = {}
        pending = [op]
        while pending:
            for user in users.get(pending.pop(), []):
                if forward[user]:
                    found.setdefault(int(stage[user]), graph.modules[user] or "the model itself")
                elif graph.micro_batches[user] == NO_MICRO_BATCH and graph.passes[user] == "forward":
                    pending.append(user)
        if len(found) > 1 and not (tied and len(set(found.values())) == 1):
            (one, first_user), (other, next_user), *_ = sorted(found.items())
            raise ExportError(
                f"{graph.name}: {graph.op_names[op]} is read in stage {one} by {first_user} and in stage {other} by "
                f"{next_user}; torch would train two copies of it: untie it, or place on fewer devices"
            )


def _named(graph: ComputationGraph, program: np.ndarray, stage: np.ndarray) -> tuple[tuple[str, ...], ...]:
    """(S,) for each stage, the outermost modules that compute in this stage alone."""
    stages: dict[str, set[int]] = {}
    for op in program.tolist():
        for module in around(graph.modules[op]):
            stages.setdefault(module, set()).add(int(stage[op]))
    alone = {module: min(found) for module, found in stages.items() if len(found) == 1}
    outermost = {module: number for module, number in alone.items() if module.rpartition(".")[0] not in alone}
    last = int(stage[program].max())
    return tuple(tuple(m for m, number in outermost.items() if number == s) for s in range(last + 1))
