"""``placeto capture``: turn a PyTorch model into a graph file."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from placeto.capture.costing.flops import uncounted
from placeto.cli.shared.common import say
from placeto.cli.shared.graphs import capture_factory, import_onnx
from placeto.cli.shared.options import Captured, JsonOut
from placeto.problem.graph import save_graph
from placeto.problem.graph.graph_memory import assumed
from placeto.problem.graph.uncounted import UncountedWarning
from placeto.problem.units import format_bytes, format_flop


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Capture a PyTorch model's training step, or its inference, as a graph file.

    FACTORY is file.py:function, or package.module:function, which is also looked up in the current directory. Give
    its arguments behind the name, as in 'zoo.py:unet(depth=4)', or with --set. The function returns
    (module, inputs), (module, inputs, loss) or (module, inputs, loss, targets).

    The module is called as module(*inputs), or as module(**inputs) if inputs is a dict. The loss is called as
    loss(output, *targets). Without a loss, the output is the loss, or has it as .loss or ["loss"]. The function is
    called under torch.device("meta"), so that tensors made in it take no memory.

    In place of FACTORY you can give an ONNX file, FILE.onnx, whose inference is captured. Give the sizes of its
    symbolic dimensions with --dim.
    """

    factory: Annotated[Positional[str], arg(metavar="FACTORY")]
    """package.module:function or file.py:function, or an ONNX file"""
    out: JsonOut
    """the graph file to write, .json or .json.gz"""
    options: Captured


def run(arguments: Arguments) -> None:
    """Capture the graph, write its file, and describe the graph."""
    path, factory = arguments.out, arguments.factory
    name = path.name.split(".")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncountedWarning)  # it is printed below
        if factory.endswith(".onnx"):
            graph = import_onnx(factory, arguments.options, name)
        else:
            graph, _ = capture_factory(factory, arguments.options, name)
    save_graph(graph, path)
    say(f"graph        {path}: {graph.num_ops} ops, {graph.num_edges} edges, {graph.mode}")
    say(f"work         {format_flop(graph.flops.sum())}")
    if line := uncounted(graph):
        say(f"uncounted    {line}")
    say(f"parameters   {format_bytes(graph.param_bytes.sum())}")
    if graph.mode == "training":
        say(f"memory       {assumed(graph, arguments.options.optimizer, arguments.options.master_weights)}")
