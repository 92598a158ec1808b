"""GRAPH arguments: files, graphs of families, and functions of the user's code, which are captured on the way."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from placeto.cli.shared.options import ANY_GRAPH_HELP, CHOOSING_HELP, FACTORY_HELP, CaptureOptions, TraceOptions, refuse
from placeto.errors import PlacerError, UsageError
from placeto.placers import families, load_family, resolve_graph
from placeto.problem.graph.uncounted import UncountedWarning, told, without_formula

if TYPE_CHECKING:
    from torch import nn

    from placeto.formats.plan import PlanFile
    from placeto.problem.cluster import Cluster
    from placeto.problem.graph import ComputationGraph

_MODULES = "modules, given as file.py:function"
_OF_MODULES = {field.name for field in fields(CaptureOptions)} - {"inference", "dimensions"}
Traced = TypeVar("Traced", bound=TraceOptions)


def find_graph(
    argument: str, options: CaptureOptions, width: int = 1
) -> tuple[str, ComputationGraph, nn.Module | None]:
    """Return the name to show for a GRAPH argument, the graph, and its module if it was captured, else None.

    A step that is captured is that of one rank of a tensor-parallel group of `width` boards.

    Raises:
        UsageError, PlacerError: there is no such graph, or an option is for another kind of argument.
        CaptureError, GraphError: the graph can't be captured or read.
    """
    if is_factory(argument):
        return argument, *capture_factory(argument, options, width=width)
    if argument.endswith(".onnx") and Path(argument).is_file():
        return argument, import_onnx(argument, options, Path(argument).name.split(".")[0]), None
    if not argument.strip():
        raise UsageError(f"the name of a graph is empty; a graph is {ANY_GRAPH_HELP}")
    if Path(argument).suffix in (".py", ".ipynb"):
        raise UsageError(f"graph {argument!r}: {_hint(argument)}")
    if Path(argument).is_file() or argument.count(":") == 2:
        refuse(options, ("dimensions",), f"is for ONNX files; {argument} is a graph already")
        refuse(options, _OF_MODULES | {"inference"}, f"is for {_MODULES}; {argument} is a graph already")
    try:
        return *resolve_graph(argument), None
    except PlacerError as problem:
        if argument.count(":") == 2 and not Path(argument).parent.name:  # a graph of a family
            raise
        if hint := _hint(argument):
            raise UsageError(f"graph {argument!r}: {hint}") from None
        raise UsageError(f"{problem}, or a model to capture: {FACTORY_HELP}") from None


def as_planned(path: Path, argument: str, cluster: Cluster | None, options: Traced) -> Traced:
    """Return how a GRAPH is captured for a placement file: if that is a plan, in the plan's number of micro-batches.

    Raises:
        PlacementError: the plan is for another cluster than the given one.
        UsageError: the options give another number of micro-batches than the plan has.
    """
    from placeto.errors import PlacementError
    from placeto.formats.plan import load_plan
    from placeto.problem.messages import within

    plan = load_plan(path)
    if plan is None:
        return options
    if cluster is not None:
        with within(PlacementError, path):
            plan.check_cluster(cluster)
    if options.micro_batches not in (1, plan.micro_batches):
        raise UsageError(
            f"--micro-batches {options.micro_batches}: {path} is a plan with {plan.micro_batches} micro-batches: "
            "leave the option out"
        )
    return replace(options, micro_batches=plan.micro_batches) if is_factory(argument) else options


def check_replicas(path: Path, way: PlanFile, argument: str, options: CaptureOptions) -> None:
    """Refuse a plan of replicas that was made for another step than that of a GRAPH.

    Raises:
        PlacementError: it is for another step.
    """
    from placeto.errors import PlacementError
    from placeto.problem.messages import within

    width = 1 if way.plan is None else way.plan.get("width", 1)
    if way.graph_hash is not None:
        with within(PlacementError, path):
            way.check_graph(find_graph(argument, options, width)[1])


def is_factory(argument: str) -> bool:
    """Whether an argument names a function of the user's code, rather than a file or a graph of a family.

    >>> [is_factory(text) for text in ("net.py:f", "my.net:f(depth=4)", "C:/net.py:f", "cifar10:test:3", "a.json")]
    [True, True, True, False, False]
    """
    if Path(argument).is_file():
        return False
    if ".py:" in argument:
        return True
    where, *calls = argument.partition("(")[0].split(":")
    if len(calls) != 1 or Path(where).is_file():
        return False
    if len(where) == 1 and argument[2:3] in ("\\", "/"):  # the drive of a path
        return False
    return where not in families() or Path(f"{where}.py").is_file()


def capture_factory(
    factory: str, options: CaptureOptions, name: str = "", width: int = 1
) -> tuple[ComputationGraph, nn.Module]:
    """Return the graph of a FACTORY's step, and the module; the graph is called like the function if no name is given.

    Raises:
        UsageError: there is no such function, or an option is invalid or not for a FACTORY.
        CaptureError: the step can't be captured.
    """
    from placeto.capture.trace import capture_inference
    from placeto.cli.shared.factory import LOSS_NEEDED, user_step
    from placeto.errors import CaptureError

    refuse(options, ("dimensions",), "is for ONNX files; a factory says how large its inputs are")
    check_step(options)
    step = user_step(factory, options, "cpu" if options.run else "meta")
    name, count, run = name or step.name, options.micro_batches, options.run
    try:
        if options.inference:
            how: dict[str, Any] = {"precision": options.precision, "micro_batches": count}
            return capture_inference(step.module, step.inputs, name=name, run=run, **how), step.module
        more = {"run": run, "optimizer_step": options.optimizer_step, "width": width}
        return step.capture(options, count, name, **more), step.module
    except CaptureError as problem:
        advice = ", or --inference" if str(problem).endswith(LOSS_NEEDED) else ""
        raise CaptureError(f"{factory}: {str(problem).removeprefix(f'{name}: ')}{advice}") from problem


def check_step(options: TraceOptions) -> None:
    """Refuse numbers of micro-batches that the command can't choose, and options of a training step for an inference.

    Raises:
        UsageError: there is such an option.
    """
    if options.micro_batches == "auto":
        raise UsageError(
            f"--micro-batches auto: is for {CHOOSING_HELP}, which print the number that they choose: give that number "
            "here"
        )
    if options.inference:
        not_of_it = "loss", "optimizer_step", "master_weights"
        refuse(options, not_of_it, "is part of a training step, not of --inference")


def import_onnx(file: str, options: CaptureOptions, name: str) -> ComputationGraph:
    """Return the graph of the inference in an ONNX file.

    Raises:
        UsageError: there is no such file, an option for modules is given, or a --dim isn't name=size.
        GraphError: the file can't be read.
    """
    from placeto.formats.onnx_import import onnx_model

    if not Path(file).is_file():
        raise UsageError(f"there is no file {file!r}")
    refuse(options, _OF_MODULES, f"is for {_MODULES}; {file} is an inference as it is")
    sizes = {}
    for given in options.dimensions:
        symbol, _, size = given.rpartition("=")
        if not symbol or not (size.isascii() and size.isdigit()):
            raise UsageError(f"--dim {given!r}: must be name=size, such as batch=8")
        sizes[symbol] = int(size)
    graph = onnx_model.load(file, sizes, name)
    if found := without_formula(graph):
        warnings.warn(f"{file}: {told(found)}", UncountedWarning, stacklevel=2)
    return graph


def _hint(argument: str) -> str:
    """Say what was probably meant by an argument that is neither a graph nor a function; "" if that can't be told."""
    path, (first, *rest) = Path(argument), argument.split(":")
    if ".ipynb" in (path.suffix, Path(first).suffix):
        return "a notebook can't be read: save its code as a .py file"
    if path.is_file() and path.suffix == ".py":
        from placeto.cli.shared.factory import functions_of

        names = [f"{path}:{name}" for name in functions_of(path)]
        there = f"there are {', '.join(names)}" if names else "there is none"
        return f"name the function in it that returns (module, inputs, loss); {there}"
    if path.exists():
        return ""
    if path.suffix == ".py":
        return "there is no such file"
    if Path(f"{argument}.py").is_file():
        return f"{argument}.py is a file: write {argument}.py:FUNCTION"
    if rest and Path(first).is_file():
        return f"{first} is a file: leave out ':{':'.join(rest)}'"
    if first in families() and len(rest) < 2:
        splits = load_family(first).splits
        split = rest[0] if rest and rest[0] in splits else next(iter(splits))
        return f"{first} is a family of graphs: write {first}:{split}:0, its splits are {', '.join(splits)}"
    if not path.parent.is_dir():
        return f"there is no folder {str(path.parent)!r}"
    near = get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], 3)
    return f"no such file; there is {' and '.join(str(path.parent / name) for name in near)}" if near else ""
