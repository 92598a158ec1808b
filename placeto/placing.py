"""Place a model in one call, and run it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from placeto.errors import PlacerError
from placeto.placers import DEFAULT_PLACER, Placer, keeping_modules, load_placer, throughput_placer
from placeto.problem.checks import Positive, Size, check_fields
from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.costs import CostModel, load_costs
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.graph_memory import with_optimizer
from placeto.problem.graph.memory_fields import DEFAULT_OPTIMIZER
from placeto.problem.messages import listed, quote
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import PlacementResult
from placeto.simulator.warming import warm_up

if TYPE_CHECKING:
    from torch import nn

    from placeto.capture.inputs.arguments import Inputs
    from placeto.capture.trace import Capture
    from placeto.runtime.executable import PlacedModule
    from placeto.runtime.local_devices import LocalDevice
    from placeto.runtime.measuring.tuning import Round, Tuned
    from placeto.runtime.real_steps import RealStep

PROFILE_SECONDS = 5.0
"""For how many seconds `place` runs a step to measure its ops on devices of this machine."""


@dataclass(frozen=True)
class Budget:
    """What a placer may spend, and the seed of its random choices; a PlacerError refuses values that are none."""

    simulations: Size | None = None
    seconds: Positive | None = None
    seed: Size = 0

    def __post_init__(self) -> None:
        check_fields(self, PlacerError)


@dataclass(frozen=True, eq=False, repr=False)
class PlacedModel(PlacementResult):
    """The placement of a module, from which `compile` makes a callable that runs as it was placed."""

    module: nn.Module | None = None
    capture: Capture | None = None
    inputs: Inputs = ()
    targets: Sequence[Any] = ()
    local: tuple[str, ...] = ()  # names of the devices of this machine; () = placed on a cluster

    def __deepcopy__(self, memo: dict[int, Any]) -> PlacedModel:
        """Return the same placement for a deep copy of the module; the copy is captured anew.

        Raises:
            CaptureError: the step of the copy differs from that of the module.
        """
        capture = copy.deepcopy(self.capture, memo)
        return replace(self, module=copy.deepcopy(self.module, memo), capture=capture)

    def compile(self, devices: Sequence[str] = ()) -> PlacedModule:
        """Return the training step, or the inference, as a callable; see `PlacedModule`.

        Args:
            devices: names of devices of this machine, one for each device of the cluster, in the order of the cluster.
                They are not needed if the module was placed on devices of this machine.

        Raises:
            RunError: there are more or fewer devices than the cluster has, or this machine lacks one of them; or a
                parameter or a buffer of the module is on "meta", where nothing can be run; or a placed step would not
                do what the module does, as `Capture.refusal` says; or blocks are recomputed.
        """
        from placeto.errors import RunError
        from placeto.runtime.executable import PlacedModule
        from placeto.runtime.local_devices import open_devices

        assert self.module is not None
        if self.plan is not None and self.plan.recomputed:
            raise RunError(
                f"compile can't recompute {listed(self.plan.recomputed)} for the backward pass: run a pipeline by "
                "`placeto run --plan`; else let the module call them by torch.utils.checkpoint, and place it again"
            )
        assert self.capture is not None
        _check_devices(devices)
        names, cluster = devices or self.local, self.problem.cluster
        if len(names) != cluster.num_devices:
            wanted = f"{cluster.num_devices} devices of this machine, for {listed(cluster.device_names)}"
            raise RunError(f"compile needs {wanted}, not {len(names)}: compile(devices=[...])")
        return PlacedModule(self.capture, self.inputs, self.targets, self.schedule(), open_devices(names))


def place(
    model: nn.Module | ComputationGraph,
    inputs: Inputs = (),
    *,
    cluster: Cluster | str | Path | None = None,
    devices: Sequence[str] = (),
    loss: Callable[..., Any] | None = None,
    targets: Sequence[Any] = (),
    training: bool | None = None,
    optimizer: str = DEFAULT_OPTIMIZER,
    master_weights: bool = False,
    placer: str | Path = DEFAULT_PLACER,
    simulations: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    precision: str = "fp32",
    micro_batches: int | Literal["auto"] = 1,
    costs: CostModel | str | Path | None = None,
    whole_modules: bool | Sequence[str] = False,
    objective: Literal["makespan", "throughput"] = "makespan",
) -> PlacementResult:
    """Find a device for each op of a module's training step, of its inference if no loss is given, or of a graph.

    Args:
        model: a module, which is captured as `capture_training` and `capture_inference` do, or a graph.
        inputs: arguments of the module, in a sequence, or by name in a mapping.
        cluster: the machine: a `Cluster`, the name of a preset, or a cluster file.
        devices: in place of `cluster`, devices of this machine, such as ["cpu:0", "cuda:0"]. The module's ops are
            measured on them, and the tensors of the module must be on the CPU.
        loss: ``loss(output, *targets)`` -> scalar.
        targets: further arguments of the loss.
        training: whether to place a training step. If not given, a training step is placed if there is a loss. With
            True and no loss, the module itself returns the loss.
        optimizer: the optimizer, whose state needs memory in the training step: sgd, momentum, adagrad, rmsprop, lion,
            adam, adamw.
        master_weights: whether 16-bit parameters also have a copy in float32; see `capture_training`.
        placer: name of a placer, or a checkpoint.
        simulations: budget of the placer. Without `simulations` and `seconds`, the placer decides; the default placer
            takes 1,000 simulations.
        seconds: budget of the placer in seconds, counted from when its compiled parts are loaded.
        seed: seed of the placer's random choices.
        precision: what the run will use, "fp32", "tf32", "bf16" or "fp16"; see `capture_training`.
        micro_batches: into how many parts to split the batch; see `capture_training`. "auto" takes the best of 1, 2,
            4, 8 and 16. A third of the budget (1,000 simulations if none is given) is spent on trying all of these.
            With the rest, the step in the best number is placed again. If memory is short, the default placer also
            tries the ways of `placeto.plan` that have a placement, which may recompute blocks.
        costs: a cost model, or its name or file, as `placeto.problem.costs.load_costs` takes it. If not given, it is
            "efficiency", or with `devices` the times that are measured on them.
        whole_modules: True keeps each block of the model (a module whose path ends in a number) on one device, as
            device maps need it; in a model without blocks, each module. A list of paths also keeps each of these
            modules on one device. If the model says which classes of modules must not be split, as models of Hugging
            Face do, modules of these classes are kept whole too.
        objective: what to minimise: "makespan", the time of one step, or "throughput", the greatest load of a device
            in a stream of samples. The placers of "throughput" are "free", the default, and "contiguous"; their budget
            is in seconds.

    Returns:
        The placement. For a module it is a `PlacedModel`, whose ``compile()`` makes it run. With the objective
        throughput it is a `placeto.heuristics.throughput.StreamPlacement`, for modules and graphs.

    Raises:
        CaptureError: `model` is neither a module nor a graph, or the module can't be traced.
        PlacerError, ClusterError, CostsError: there is no such placer, cluster or cost model.
        RunError: this machine lacks a device, or the module can't be run.
        PlanError: `whole_modules` is given, but the graph has no modules, or lacks one that is named.
        PlacerError: a budget, a seed or an objective is invalid; or the objective is throughput for a step in
            micro-batches, or no split that fits was found; or the budget is too small to compare numbers of
            micro-batches.
        TypeError: `model` is a path, both or neither of `cluster` and `devices` are given, an argument is for modules
            alone and `model` is a graph, or another argument has a wrong type.
    """
    _check_devices(devices)
    if (cluster is None) == (not devices):
        raise TypeError("place needs a cluster, or devices of this machine, and not both")
    Budget(simulations, seconds, seed)
    if isinstance(model, str | Path):
        raise TypeError(f"place needs a module or a graph, not {quote(model)}: write load_graph({quote(str(model))})")
    if micro_batches == "auto" and devices:
        raise TypeError(
            "micro_batches='auto' needs a cluster; with devices, give a number, for which the ops are measured"
        )
    if isinstance(model, ComputationGraph):
        if devices:
            raise TypeError("a graph can't be run: place needs the module to place on devices of this machine")
        of_module = inputs, targets, loss, training, precision, micro_batches, optimizer, master_weights
        _refuse_for_graphs(dict(zip(_OF_MODULES, of_module, strict=True)))
    captures: dict[int, Capture] = {}
    place_by = _placer_of(objective, placer, micro_batches)
    on = cluster if isinstance(cluster, Cluster) or cluster is None else load_cluster(cluster)
    by = load_costs("efficiency" if costs is None else costs) if isinstance(costs, str | Path | None) else costs

    def graph_of(count: int) -> ComputationGraph:
        if isinstance(model, ComputationGraph):
            return model
        from placeto.capture.trace import trace_inference, trace_training

        how: dict[str, Any] = {"precision": precision, "micro_batches": count}
        if training or (training is None and loss is not None):
            captures[count] = capture = trace_training(model, inputs, loss, targets=targets, **how)
            return with_optimizer(capture.graph, optimizer, master_weights)
        captures[count] = capture = trace_inference(model, inputs, **how)
        return capture.graph

    def problem_of(count: int) -> PlacementProblem:
        graph = graph_of(count)
        if on is not None:
            return PlacementProblem(graph, on, by)
        local, measured = _profiled(captures[count], inputs, targets, devices)
        return PlacementProblem(graph, local, measured if costs is None else by)

    def place_one(problem: PlacementProblem, simulations: int | None, seconds: float | None) -> PlacementResult:
        undivided = undivided_modules(model, whole_modules, problem.graph)
        return place_problem(problem, place_by, simulations, seconds, seed, undivided)

    if micro_batches == "auto":
        from placeto.planning.variants import Variants
        from placeto.planning.ways import place_or_plan

        assert on is not None
        plans = placer == DEFAULT_PLACER and whole_modules is False
        variants = Variants(lambda count, *_: graph_of(count), on, by)
        chosen = place_or_plan(variants, place_one, plans, simulations, seconds)
        count, result = chosen.count, chosen.result
    else:
        count, result = micro_batches, place_one(problem_of(micro_batches), simulations, seconds)
    if isinstance(model, ComputationGraph) or objective == "throughput":
        return result
    found = {field.name: getattr(result, field.name) for field in fields(PlacementResult)}
    return PlacedModel(
        **found, module=model, capture=captures[count], inputs=inputs, targets=targets, local=tuple(devices or ())
    )


def _placer_of(objective: str, placer: str | Path, micro_batches: int | str) -> Placer:
    """Return the placer for an objective; a PlacerError refuses what the objective doesn't take."""
    if objective not in ("makespan", "throughput"):
        raise PlacerError(f"objective must be 'makespan' or 'throughput', not {quote(objective)}")
    if objective == "makespan":
        return load_placer(placer)
    if micro_batches != 1:
        raise PlacerError("the objective throughput takes no micro-batches: leave micro_batches at 1")
    return throughput_placer(None if placer == DEFAULT_PLACER else str(placer))[1]


def place_problem(
    problem: PlacementProblem,
    place_by: Placer,
    simulations: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    undivided: tuple[str, ...] | None = None,
    shown: AbstractContextManager[object] | None = None,
) -> PlacementResult:
    """Load the compiled parts of a placer, then place a problem by it; `place` and `placeto place` both call this.

    Args:
        problem: the problem to be placed.
        place_by: the placer.
        simulations: the placer's budget, in simulations.
        seconds: the placer's budget, in seconds; loading and compiling don't count.
        seed: the seed of the placer's random choices.
        undivided: what `undivided_modules` returns.
        shown: a context manager, which is open while the placer runs.

    Raises:
        PlacerError: the budget or the seed is invalid.
        PlanError: `undivided` is given, but the graph has no modules, or lacks one that is named.
    """
    budget = Budget(simulations, seconds, seed)
    placer = place_by
    if undivided is not None:
        from placeto.problem.step.whole_modules import module_units

        module_units(problem.graph, undivided)  # refuses before anything is compiled
        placer = keeping_modules(place_by, undivided)
    warm_up(place_by, problem, budget.simulations, budget.seconds)
    with nullcontext() if shown is None else shown:
        result = placer(problem, simulations=budget.simulations, seconds=budget.seconds, seed=budget.seed)
    return replace(result, whole_modules=undivided)


def undivided_modules(
    model: nn.Module | ComputationGraph | None, whole_modules: bool | Sequence[str], graph: ComputationGraph
) -> tuple[str, ...] | None:
    """Return the paths of modules that stay whole in addition to the blocks, or None if all modules may be divided.

    If the model says which classes of modules must not be split (`_no_split_modules`), the modules of these classes
    are included, as far as ops of the graph come from them.

    Raises:
        TypeError: `whole_modules` is neither a bool nor a list of paths.
    """
    if isinstance(whole_modules, bool):
        if not whole_modules:
            return None
        whole_modules = ()
    if isinstance(whole_modules, str) or not isinstance(whole_modules, Collection):
        raise TypeError(f"whole_modules must be True, or a list of paths of modules, not {quote(whole_modules)}")
    named = tuple(whole_modules)
    classes = getattr(model, "_no_split_modules", None) or ()
    if model is None or isinstance(model, ComputationGraph) or not classes:
        return named
    used = {path for of in graph.modules for path in _prefixes(of)}
    own = [path for path, module in model.named_modules() if type(module).__name__ in classes and path in used]
    return (*named, *own)


def _prefixes(path: str) -> list[str]:
    """Return the paths of a module and of the modules around it, the outermost first."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


_OF_MODULES = "inputs", "targets", "loss", "training", "precision", "micro_batches", "optimizer", "master_weights"
"""Arguments of `place` that say how a module is captured."""


def _refuse_for_graphs(given: Mapping[str, Any]) -> None:
    """Refuse arguments of `_OF_MODULES` that aren't their defaults."""
    for name in _OF_MODULES:
        value, default = given[name], signature(place).parameters[name].default
        if len(value) if default == () and isinstance(value, Sized) else value != default:
            raise TypeError(f"{name} is for modules: a graph is captured already, give {name} to the capture")


def _check_devices(devices: object) -> None:
    if devices is None:
        return
    if isinstance(devices, str) or not isinstance(devices, Collection) or not all(isinstance(d, str) for d in devices):
        raise TypeError(f"devices must be a list of names, such as ['cpu:0', 'cuda:0'], not {quote(devices)}")


def _profiled(
    capture: Capture, inputs: Inputs, targets: Sequence[Any], devices: Sequence[str]
) -> tuple[Cluster, CostModel]:
    """Return a cluster of this machine's devices, and the times of a step's ops that are measured on them."""
    from placeto.runtime.local_devices import open_devices
    from placeto.runtime.measuring.profiling import profile
    from placeto.runtime.real_steps import real_step

    opened = open_devices(devices)
    try:
        profiled = profile([real_step(capture, inputs, targets)], opened, PROFILE_SECONDS)
    finally:
        for device in opened:
            device.thread.shutdown()
    return profiled.cluster, profiled.costs


def tuned(
    step: RealStep,
    devices: Sequence[LocalDevice],
    seconds: float,
    count: int = 4,
    seed: int = 0,
    report: Callable[[Round], None] = lambda found: None,
) -> Tuned:
    """Find the placement that is fastest when it is run; arguments as of `placeto.runtime.measuring.tuning.tune`.

    The candidates of each round are by heft, etf and metis, by the default placer with 300 and with 2,000 simulations,
    and by multilevel with 2,000. Their seed is `seed` plus the number of the round, from 0.
    """
    from placeto.runtime.measuring.tuning import tune

    def candidates(problem: PlacementProblem, number: int) -> list[PlacementResult]:
        made = [load_placer(name)(problem, seed=seed + number) for name in ("heft", "etf", "metis")]
        made += [load_placer(DEFAULT_PLACER)(problem, simulations=n, seed=seed + number) for n in (300, 2000)]
        return [*made, load_placer("multilevel")(problem, simulations=2000, seed=seed + number)]

    return tune(step, devices, candidates, seconds, count, report)
