"""``placeto capture``: turn a PyTorch model into a graph file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import nn
from tyro.conf import Positional, arg

from placeto.capture import capture_inference, capture_training
from placeto.commands.common import UsageError, check_output
from placeto.graph import save_graph

_RETURNS = "must return (module, inputs), (module, inputs, loss) or (module, inputs, loss, targets)"


@dataclass(frozen=True)
class Arguments:
    """Capture a PyTorch model's training step, or its inference, as a graph file.

    FACTORY is package.module:function, looked up in the current directory too. It takes no argument and returns
    (module, inputs), (module, inputs, loss) or (module, inputs, loss, targets): the module is called as
    module(*inputs), the loss as loss(output, *targets); without one the module returns the loss. It is called
    under torch.device("meta"), so that tensors made in it take no memory.
    """

    factory: Annotated[Positional[str], arg(metavar="FACTORY")]
    """package.module:function"""
    output: Annotated[Path, arg(name="out", aliases=["-o"], metavar="PATH")]
    """the graph file to write, .json or .json.gz"""
    inference: bool = False
    """capture the forward pass only"""


def run(arguments: Arguments) -> None:
    """Capture and write."""
    path = arguments.output
    check_output("--out", path)
    if not path.name.endswith((".json", ".json.gz")):
        raise UsageError(f"--out {path}: must end in .json or .json.gz")
    make = _find(arguments.factory)
    with torch.device("meta"):
        made = make()
    if not isinstance(made, tuple) or not 2 <= len(made) <= 4 or not isinstance(made[0], nn.Module):
        raise UsageError(f"{arguments.factory} {_RETURNS}")
    module, inputs, *rest = made
    name = path.name.split(".")[0]
    if arguments.inference:
        graph = capture_inference(module, inputs, name=name)
    else:
        loss = rest[0] if rest else None
        graph = capture_training(module, inputs, loss, targets=rest[1] if len(rest) > 1 else (), name=name)
    save_graph(graph, path)
    print(f"graph        {path}: {graph.num_ops} ops, {graph.num_edges} edges, {graph.mode}")
    print(f"work         {graph.flops.sum() / 1e9:.3f} GFLOP")
    print(f"parameters   {graph.param_bytes.sum() / 1e9:.3f} GB")


def _find(factory: str) -> Callable[[], Any]:
    """The function that ``package.module:function`` names.

    Raises:
        UsageError: there is no such module or function.
    """
    module, _, function = factory.partition(":")
    if not module or not function:
        raise UsageError(f"{factory!r}: must be package.module:function")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), function)
    except ModuleNotFoundError as problem:
        raise UsageError(f"{factory!r}: there is no module {problem.name!r}") from None
    except AttributeError:
        raise UsageError(f"{factory!r}: module {module!r} has no function {function!r}") from None
    if not callable(found):
        raise UsageError(f"{factory!r}: {function!r} is no function")
    return found
