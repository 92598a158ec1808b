"""Options that several commands take. Each is described once, and its type says which values it may have.

Single options are types, which have a help text unless its meaning differs from command to command. Options that belong
together are dataclasses. `check_options` checks a command's arguments by their types.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator
from tyro.conf import Positional, Suppress, UseAppendAction, arg
from tyro.constructors import PrimitiveConstructorSpec

from placeto.errors import UsageError
from placeto.placers import GRAPH_HELP
from placeto.problem.checks import Count, Index, Positive, checked
from placeto.problem.json_files import check_json_name
from placeto.problem.units import parse_bytes

OUTPUTS = ("out", "plot", "curve", "trace", "report", "cluster_out")
"""Options that name a file to be written; two of them can't name the same file."""
CLUSTER_HELP = "a name from `placeto list clusters`, or a cluster file"
FACTORY_HELP = "file.py:function or package.module:function that returns (module, inputs[, loss[, targets]])"
ANY_GRAPH_HELP = f"{GRAPH_HELP}, or a model to capture: {FACTORY_HELP}"
CHOOSING = ("place", "plan", "fits", "compare")  # the commands that take --micro-batches auto
CHOOSING_HELP = " and ".join((", ".join(f"`placeto {name}`" for name in CHOOSING[:-1]), f"`placeto {CHOOSING[-1]}`"))
_LEAST = 1_000_000  # bytes that a size without a unit must have


def whole_number(text: str) -> int:
    """Parse a whole number, which may be written as 1e3 or 1_000.

    Raises:
        ValueError: the text is no whole number.
    """
    try:
        return int(text)
    except ValueError:
        if re.fullmatch(r"[+-]?\d+(\.\d+)?e\+?\d{1,2}", text, re.IGNORECASE) and float(text).is_integer():
            return int(float(text))
        raise ValueError(f"{text!r} is no whole number") from None


def _count_or_auto(text: str) -> int | str:
    return text if text == "auto" else whole_number(text)


def size_of(text: str) -> int:
    """Parse a size such as 1GB or 512MB; return its bytes.

    Raises:
        ValueError: the text is no size, or is a number without a unit below 1,000,000 (0 is allowed).
    """
    number = text.strip()
    try:
        size = parse_bytes(number)
    except ValueError:
        meant = ""
        if given := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])(i?)B?", number, re.IGNORECASE):  # such as 24G or 24GiB
            unit = given[2].upper()
            larger = 1.024 ** " KMGT".index(unit) if given[3] else 1.0
            meant = f"; did you mean {float(given[1]) * larger:.6g}{unit}B?"
        raise ValueError(f"{text!r} must be a size such as 1GB or 512MB{meant}") from None
    if 0 < size < _LEAST and number[-1].isdigit():
        raise ValueError(f"{number} means {number} bytes; did you mean {number}GB? Write {number}B for bytes")
    return size


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list.

    >>> names_in("cpu:0, cpu:1,")
    ('cpu:0', 'cpu:1')
    """
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _primitive(kind: Any, metavar: str, parse: Callable[[str], Any], show: Callable[[Any], str]) -> Any:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: parse(words[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: [show(value)],
    )


_INT = _primitive(int, "INT", whole_number, str)
_INT_OR_AUTO = _primitive(int | str, "INT|auto", _count_or_auto, str)
_SIZE = _primitive(int, "SIZE", size_of, str)
_NAMES = _primitive(tuple, "NAMES", names_in, ",".join)


def _check_writable(path: Path) -> Path:
    """Refuse a folder, and a file whose folder doesn't exist or can't be written to, before any work is done."""
    if path.is_dir():
        raise UsageError(f"{path}: is a directory, give the name of a file in it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: the directory {path.parent} doesn't exist")
    target = Path(os.path.realpath(path))
    if not os.access(target if target.exists() and not target.is_file() else target.parent, os.W_OK):
        raise UsageError(f"{path}: can't be written, permission is denied")
    return path


def _check_json(path: Path) -> Path:
    check_json_name(path, UsageError)
    return path


def _check_picture(path: Path) -> Path:
    from placeto.formats.gantt import check_suffix

    check_suffix(path)
    return path


def _check_page(path: Path) -> Path:
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{path}: a page's name must end in .html")
    return path


WritablePath = Annotated[Path, AfterValidator(_check_writable)]
JsonPath = Annotated[WritablePath, AfterValidator(_check_json)]
PicturePath = Annotated[WritablePath, AfterValidator(_check_picture)]
PagePath = Annotated[WritablePath, AfterValidator(_check_page)]

JsonOut = Annotated[JsonPath, arg(aliases=["-o"], metavar="PATH")]
OptionalJsonOut = Annotated[JsonPath | None, arg(aliases=["-o"], metavar="PATH")]
OptionalJson = Annotated[JsonPath | None, arg(metavar="PATH")]
OptionalPicture = Annotated[PicturePath | None, arg(metavar="PATH")]
OptionalPage = Annotated[PagePath | None, arg(metavar="PATH")]
OptionalPath = Annotated[Path | None, arg(metavar="PATH")]
OptionalText = Annotated[str | None, arg(metavar="NAME")]
OptionalCount = Annotated[Count | None, _INT]
Counted = Annotated[Count, _INT]
Whole = Annotated[Index, _INT]
CountOrAuto = Annotated[Count | Literal["auto"], _INT_OR_AUTO]
Size = Annotated[int, _SIZE]
OptionalSize = Annotated[int | None, _SIZE]
Names = Annotated[tuple[str, ...], _NAMES]

ClusterName = Annotated[str, arg(help=CLUSTER_HELP)]
_Dispatch = Literal["fifo", "list", "priority", "earlier-0.02", "earlier-0.05", "earlier-0.2", "1f1b"] | None
_DISPATCH_HELP = (
    "which ready op a device runs next: fifo, list or a static order such as priority; the {}'s if not given"
)
DispatchName = Annotated[_Dispatch, arg(metavar="NAME", help=_DISPATCH_HELP.format("cluster"))]
FileDispatchName = Annotated[_Dispatch, arg(metavar="NAME", help=_DISPATCH_HELP.format("file"))]
CostsName = Annotated[str, arg(metavar="NAME|FILE", help="how long ops take: efficiency, roofline, or a file of costs")]
PlacerName = Annotated[
    OptionalText,
    arg(help="a name from `placeto list placers`; if not given, that of the checkpoint, or placeto with its trained "
    "policy"),
]  # fmt: skip
Seed = Annotated[Whole, arg(help="seed of the random choices")]
Devices = Annotated[Names, arg(help="devices of this machine, such as cpu:0,cpu:1,cuda:0; cpu:i is one core")]
Plot = Annotated[OptionalPicture, arg(help="draw the schedule to this .png, .svg or .pdf file")]
GraphArgument = Annotated[Positional[str], arg(metavar="GRAPH", help=ANY_GRAPH_HELP)]
GraphArguments = Annotated[Positional[tuple[str, ...]], arg(metavar="GRAPH ...")]
Factory = Annotated[Positional[str], arg(metavar="FACTORY", help="package.module:function or file.py:function")]
Settings = Annotated[
    UseAppendAction[tuple[str, ...]],
    arg(
        name="set",
        metavar="NAME=VALUE",
        help="an argument of the factory, such as depth=4; may be given several times",
    ),
]
WholeModules = Annotated[bool, arg(help="keep each block of the model on one device, as a device map needs it")]
Modules = Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="MODULE")]


@dataclass(frozen=True)
class BudgetOptions:
    """The learned placer and the budget."""

    checkpoint: OptionalPath = None
    """learned placer: a checkpoint or run directory of `placeto train`; pretrained is the one in the package"""
    simulations: Annotated[Index | None, _INT] = None
    """budget: how many placements the placer may simulate; 0 asks placeto for one pass of its policy, without search"""
    seconds: Annotated[Positive | None, arg(metavar="FLOAT")] = None
    """budget: how many seconds the placer may take, the grouping of ops included; what has begun is finished"""

    def __str__(self) -> str:
        parts = [f"{self.simulations} simulations"] if self.simulations is not None else []
        parts += [f"{self.seconds:g} seconds"] if self.seconds is not None else []
        return " or ".join(parts) if parts else "no budget"


@dataclass(frozen=True)
class TraceOptions:
    """What of a FACTORY's module is traced."""

    inference: bool = False
    """take the forward pass only, in evaluation mode, in place of a training step"""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """numbers of the run: fp32, the dtypes as they are; tf32, for products of float32; bf16 or fp16, by autocast"""
    micro_batches: Annotated[
        CountOrAuto,
        arg(
            help="split the batch into so many equal parts, so that devices can work at the same time. auto tries 1, "
            f"2, 4, 8 and 16 and takes the best; of all commands only {CHOOSING_HELP} take auto"
        ),
    ] = 1
    loss: OptionalText = None
    """the loss, in place of that of the factory: sum or mean of the output, file.py:function, or a function of
    torch.nn.functional such as cross_entropy; it is called as loss(output, *targets)"""
    settings: Settings = ()


@dataclass(frozen=True)
class StepOptions(TraceOptions):
    """Which step of a FACTORY's module is meant, and what it keeps in memory."""

    optimizer: Literal["sgd", "momentum", "adagrad", "rmsprop", "lion", "adam", "adamw"] = "adam"
    """the optimizer, whose state takes memory in addition to parameters and gradients"""
    master_weights: bool = False
    """keep a float32 copy of 16-bit parameters, and the optimizer's state in float32: 16 bytes a parameter with Adam"""


@dataclass(frozen=True)
class TrainingOptions(StepOptions):
    """Which training step of a model is meant, for commands that take no inference."""

    inference: Suppress[bool] = False
    micro_batches: CountOrAuto = "auto"
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


Budget = Annotated[BudgetOptions, arg(name="")]
Trace = Annotated[TraceOptions, arg(name="")]
Step = Annotated[StepOptions, arg(name="")]
Captured = Annotated[CaptureOptions, arg(name="")]


def check_options(options: Any) -> None:
    """Check the options of a command, and those of its groups, by their types; no two outputs may be the same file.

    Raises:
        UsageError: there is such an option; the message names it.
    """
    hints, files = get_type_hints(type(options), include_extras=True), dict[str, str]()
    for field in fields(options):
        option, value = f"--{field.name.replace('_', '-')}", getattr(options, field.name)
        if isinstance(value, BudgetOptions | TraceOptions):
            check_options(value)
        elif not is_dataclass(value):  # settings of a training are checked where it begins
            checked(value, hints[field.name], UsageError, option)
        file = os.path.realpath(value) if field.name in OUTPUTS and value is not None else option
        if (other := files.setdefault(file, option)) != option:
            raise UsageError(f"{other} and {option}: both would be written to {value}; give two files")


def refuse(options: Any, names: Collection[str], why: str) -> None:
    """Refuse those of the named options that are given.

    Raises:
        UsageError: one of them has another value than its default; the message is its name and `why`.
    """
    for field in fields(options):
        if field.name in names and getattr(options, field.name) != field.default:
            option = {"settings": "set", "dimensions": "dim"}.get(field.name, field.name.replace("_", "-"))
            raise UsageError(f"--{option} {why}")
