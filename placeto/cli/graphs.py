"""GRAPH arguments: files, graphs of families, and functions of the user's code, which are captured on the way."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from tyro.conf import Positional, Suppress, UseAppendAction, arg

from placeto.cli.common import UsageError
from placeto.placers import GRAPH_HELP, LoadError, families, load_family, resolve_graph
from placeto.problem.graph.uncounted import UncountedWarning, told, without_formula

if TYPE_CHECKING:
    from torch import nn

    from placeto.problem.cluster import Cluster
    from placeto.problem.graph import ComputationGraph

FACTORY_HELP = "file.py:function or package.module:function that returns (module, inputs[, loss[, targets]])"
ANY_GRAPH_HELP = f"{GRAPH_HELP}, or a model to capture: {FACTORY_HELP}"

CHOOSING = ("place", "plan", "fits")  # the commands that take --micro-batches auto
_CHOOSING = " and ".join((", ".join(f"`placeto {name}`" for name in CHOOSING[:-1]), f"`placeto {CHOOSING[-1]}`"))
_MICRO_BATCHES_HELP = (
    "split the batch into so many equal parts, so that devices can work at the same time. auto tries 1, 2, 4, 8 and 16 "
    f"and takes the best; of all commands only {_CHOOSING} take auto"
)

GraphArgument = Annotated[Positional[str], arg(metavar="GRAPH", help=ANY_GRAPH_HELP)]


@dataclass(frozen=True)
class TraceOptions:
    """What of a FACTORY's module is traced."""

    inference: bool = False
    """take the forward pass only, in evaluation mode, in place of a training step"""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """numbers of the run: fp32, the dtypes as they are; tf32, for products of float32; bf16 or fp16, by autocast"""
    micro_batches: Annotated[int | Literal["auto"], arg(help=_MICRO_BATCHES_HELP)] = 1
    loss: Annotated[str | None, arg(metavar="NAME")] = None
    """the loss, in place of that of the factory: sum or mean of the output, file.py:function, or a function of
    torch.nn.functional such as cross_entropy; it is called as loss(output, *targets)"""
    settings: Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="NAME=VALUE")] = ()
    """an argument of the factory, such as depth=4; may be given several times"""


@dataclass(frozen=True)
class StepOptions(TraceOptions):
    """Which step of a FACTORY's module is meant, and what it keeps in memory."""

    optimizer: Literal["sgd", "momentum", "adagrad", "rmsprop", "lion", "adam", "adamw"] = "adam"
    """the optimizer, whose state takes memory in addition to parameters and gradients"""
    master_weights: bool = False
    """keep a float32 copy of 16-bit parameters, and the optimizer's state in float32: 16 bytes a parameter with Adam"""

    @property
    def how(self) -> dict[str, Any]:
        """The options that a capture of a training step takes, as its named arguments."""
        return {"precision": self.precision, "optimizer": self.optimizer, "master_weights": self.master_weights}


@dataclass(frozen=True)
class TrainingOptions(StepOptions):
    """Which training step of a model is meant, for commands that take no inference."""

    inference: Suppress[bool] = False
    micro_batches: int | Literal["auto"] = "auto"
    """split the batch into so many equal parts; auto tries 1, 2, 4, 8 and 16"""


@dataclass(frozen=True)
class CaptureOptions(StepOptions):
    """How a FACTORY, or an ONNX file, becomes a graph."""

    optimizer_step: bool = False
    """add the optimizer's update, an op for each trained parameter"""
    run: bool = False
    """for a model whose sizes depend on values: call the factory on the CPU, and compute the step there once"""
    dimensions: Annotated[UseAppendAction[tuple[str, ...]], arg(name="dim", metavar="NAME=SIZE")] = ()
    """for an ONNX file: the size of a symbolic dimension, such as batch=8; may be given several times"""


Trace = Annotated[TraceOptions, arg(name="")]
Step = Annotated[StepOptions, arg(name="")]
Training = Annotated[TrainingOptions, arg(name="")]
Captured = Annotated[CaptureOptions, arg(name="")]


Traced = TypeVar("Traced", bound=TraceOptions)


def find_graph(argument: str, options: CaptureOptions) -> tuple[str, ComputationGraph, nn.Module | None]:
    """Return the name to show for a GRAPH argument, the graph, and its module if it was captured, else None.

    Raises:
        UsageError, LoadError: there is no such graph, or an option is for another kind of argument.
        CaptureError, GraphError: the graph can't be captured or read.
    """
    if is_factory(argument):
        from placeto.cli.factory import parted

        graph, module = capture_factory(argument, options, parted(argument)[1].partition("(")[0].strip())
        return argument, graph, module
    if argument.endswith(".onnx") and Path(argument).is_file():
        return argument, import_onnx(argument, options, Path(argument).name.split(".")[0]), None
    if not argument.strip():
        raise UsageError(f"the name of a graph is empty; a graph is {ANY_GRAPH_HELP}")
    if Path(argument).suffix in (".py", ".ipynb"):
        raise UsageError(f"graph {argument!r}: {_hint(argument)}")
    if Path(argument).is_file() or argument.count(":") == 2:
        refuse_options(options, argument, "is a graph already", ())
    try:
        return *resolve_graph(argument), None
    except LoadError as problem:
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
    from placeto.formats.placement import PlacementError
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


def capture_factory(factory: str, options: CaptureOptions, name: str) -> tuple[ComputationGraph, nn.Module]:
    """Return the graph of a FACTORY's step, and the module.

    Raises:
        UsageError: there is no such function, or an option is invalid or not for a FACTORY.
        CaptureError: the step can't be captured.
    """
    from placeto.capture.trace import CaptureError, capture_inference, capture_training
    from placeto.cli.factory import make
    from placeto.runtime.steps import filled

    if options.dimensions:
        raise UsageError(f"--dim {options.dimensions[0]}: is for ONNX files; a factory says how large its inputs are")
    check_step(options)
    with filled() if options.run else nullcontext():
        made = make(factory, options.settings, "cpu" if options.run else "meta")
    module, inputs, loss, targets = step_of(made, factory, options)
    chosen: dict[str, Any] = {
        "name": name,
        "precision": options.precision,
        "micro_batches": options.micro_batches,
        "run": options.run,
    }
    training = {**chosen, "targets": targets, "optimizer_step": options.optimizer_step, **options.how}
    try:
        if options.inference:
            return capture_inference(module, inputs, **chosen), module
        return capture_training(module, inputs, loss, **training), module
    except CaptureError as problem:
        advice = ""
        if loss is None and "the loss must be a scalar" in str(problem):
            advice = ": return (module, inputs, loss), add --loss mean, or --inference"
        raise CaptureError(f"{factory}: {str(problem).removeprefix(f'{name}: ')}{advice}") from problem


def check_step(options: TraceOptions) -> None:
    """Refuse a number of micro-batches that is no number or below 1, and options of a training step for an inference.

    Raises:
        UsageError: there is such an option.
    """
    if isinstance(options.micro_batches, str):
        raise UsageError(
            f"--micro-batches auto: is for {_CHOOSING}, which print the number that they choose: give that number here"
        )
    if options.micro_batches < 1:
        raise UsageError(f"--micro-batches must be at least 1, not {options.micro_batches}")
    for option in ("loss", "optimizer_step", "master_weights"):
        if options.inference and getattr(options, option, None):
            raise UsageError(f"--{option.replace('_', '-')} is part of a training step, not of --inference")


def step_of(made: Any, factory: str, options: TraceOptions) -> tuple[nn.Module, Any, Any, Any]:
    """Return (module, inputs, loss or None, targets) of what a factory has returned, with the loss of the options.

    Raises:
        UsageError: the factory returned something else, or there is no such loss.
    """
    from placeto.cli.factory import find_loss, step_parts

    module, inputs, loss, targets = step_parts(made, factory)
    return module, inputs, loss if options.loss is None else find_loss(options.loss), targets


def import_onnx(file: str, options: CaptureOptions, name: str) -> ComputationGraph:
    """Return the graph of the inference in an ONNX file.

    Raises:
        UsageError: there is no such file, an option for modules is given, or a --dim isn't name=size.
        GraphError: the file can't be read.
    """
    from placeto.formats import onnx_model

    if not Path(file).is_file():
        raise UsageError(f"there is no file {file!r}")
    refuse_options(options, file, "is an inference as it is", ("inference", "dimensions"))
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


def refuse_options(options: CaptureOptions, graph: str, why: str, but: Sequence[str]) -> None:
    """Refuse options of a capture for a graph that isn't captured, except the options `but`.

    Raises:
        UsageError: another option has another value than its default.
    """
    for field in fields(CaptureOptions):
        if field.name not in but and getattr(options, field.name) != field.default:
            option = {"settings": "set", "dimensions": "dim"}.get(field.name, field.name.replace("_", "-"))
            what = "ONNX files" if option == "dim" else "modules, given as file.py:function"
            raise UsageError(f"--{option} is for {what}; {graph} {why}")


def _hint(argument: str) -> str:
    """Say what was probably meant by an argument that is neither a graph nor a function; "" if that can't be told."""
    path, (first, *rest) = Path(argument), argument.split(":")
    if ".ipynb" in (path.suffix, Path(first).suffix):
        return "a notebook can't be read: save its code as a .py file"
    if path.is_file() and path.suffix == ".py":
        from placeto.cli.factory import functions_of

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
