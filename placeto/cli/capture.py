"""``placeto capture``: turn a PyTorch model, or an ONNX file, into a graph file."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from placeto.capture.flops import UncountedWarning, uncounted
from placeto.capture.trace import capture_inference, capture_training
from placeto.cli.common import UsageError, check_output
from placeto.cli.factory import make, step_parts
from placeto.formats import onnx_model
from placeto.problem.graph import ComputationGraph, save_graph
from placeto.problem.graph_memory import assumed
from placeto.problem.units import format_bytes, format_flop
from placeto.runtime.steps import filled


@dataclass(frozen=True)
class Arguments:
    """Capture a PyTorch model's training step, or its inference, as a graph file.

    FACTORY is package.module:function, looked up in the current directory too, or file.py:function. Arguments stand
    behind it, as in 'zoo.py:unet(depth=4)', or are given by --set. It returns
    (module, inputs), (module, inputs, loss) or (module, inputs, loss, targets): the module is called as
    module(*inputs), or module(**inputs) where they are a dict, the loss as loss(output, *targets); without one the
    output is the loss, or has it as .loss or ["loss"]. It is called
    under torch.device("meta"), so that tensors made in it take no memory.

    In place of a FACTORY stands an ONNX file, FILE.onnx, with --dim for its symbolic dimensions: its inference.
    """

    factory: Annotated[Positional[str], arg(metavar="FACTORY")]
    """package.module:function or file.py:function, or an ONNX file"""
    output: Annotated[Path, arg(name="out", aliases=["-o"], metavar="PATH")]
    """the graph file to write, .json or .json.gz"""
    inference: bool = False
    """capture the forward pass only"""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """what the run will use: the dtypes as they are, tf32 for products of float32, or autocast to 16 bits"""
    optimizer: Literal["sgd", "momentum", "adagrad", "rmsprop", "lion", "adam", "adamw"] = "adam"
    """whose state takes memory beside parameters and gradients"""
    optimizer_step: bool = False
    """add the optimizer's update, an op for each trained parameter"""
    master_weights: bool = False
    """keep parameters of 16 bits in float32 beside, and the optimizer's state too: 16 bytes a parameter under Adam"""
    micro_batches: int = 1
    """split the batch into so many parts, so that a placement is a pipeline"""
    run: bool = False
    """compute the step once, on the CPU, where sizes depend on values; the factory is called there, not on meta"""
    settings: Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="NAME=VALUE")] = ()
    """an argument of the factory, such as depth=4; may be given several times"""
    dimensions: Annotated[UseAppendAction[tuple[str, ...]], arg(name="dim", metavar="NAME=SIZE")] = ()
    """of an ONNX file: the size of a symbolic dimension, such as batch=8; may be given several times"""


def run(arguments: Arguments) -> None:
    """Capture and write."""
    path = arguments.output
    check_output("--out", path)
    if not path.name.endswith((".json", ".json.gz")):
        raise UsageError(f"--out {path}: must end in .json or .json.gz")
    name = path.name.split(".")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncountedWarning)  # it is printed below
        graph = _imported(arguments, name) if arguments.factory.endswith(".onnx") else _captured(arguments, name)
    save_graph(graph, path)
    print(f"graph        {path}: {graph.num_ops} ops, {graph.num_edges} edges, {graph.mode}")
    print(f"work         {format_flop(graph.flops.sum())}")
    if line := uncounted(graph):
        print(f"uncounted    {line}")
    print(f"parameters   {format_bytes(graph.param_bytes.sum())}")
    if graph.mode == "training":
        print(f"memory       {assumed(graph, arguments.optimizer, arguments.master_weights)}")


def _captured(arguments: Arguments, name: str) -> ComputationGraph:
    if arguments.dimensions:
        raise UsageError(f"--dim {arguments.dimensions[0]}: is for ONNX files; a factory says how large its inputs are")
    for option in ("optimizer_step", "master_weights"):
        if arguments.inference and getattr(arguments, option):
            raise UsageError(f"--{option.replace('_', '-')} is part of a training step, not of --inference")
    with filled() if arguments.run else nullcontext():
        made = make(arguments.factory, arguments.settings, "cpu" if arguments.run else "meta")
    module, inputs, loss, targets = step_parts(made, arguments.factory)
    if arguments.inference:
        return capture_inference(
            module,
            inputs,
            name=name,
            precision=arguments.precision,
            micro_batches=arguments.micro_batches,
            run=arguments.run,
        )
    return capture_training(
        module,
        inputs,
        loss,
        targets=targets,
        name=name,
        precision=arguments.precision,
        optimizer=arguments.optimizer,
        optimizer_step=arguments.optimizer_step,
        master_weights=arguments.master_weights,
        micro_batches=arguments.micro_batches,
        run=arguments.run,
    )


def _imported(arguments: Arguments, name: str) -> ComputationGraph:
    file = Path(arguments.factory)
    if not file.is_file():
        raise UsageError(f"there is no file {arguments.factory!r}")
    plain = Arguments(arguments.factory, arguments.output, dimensions=arguments.dimensions)
    for field in fields(Arguments):
        if field.name != "inference" and getattr(arguments, field.name) != getattr(plain, field.name):
            option = "set" if field.name == "settings" else field.name.replace("_", "-")
            raise UsageError(f"--{option} is for modules; an ONNX file is an inference as it is")
    sizes = {}
    for given in arguments.dimensions:
        symbol, _, size = given.rpartition("=")
        if not symbol or not (size.isascii() and size.isdigit()):
            raise UsageError(f"--dim {given!r}: must be name=size, such as batch=8")
        sizes[symbol] = int(size)
    return onnx_model.load(file, sizes, name)
