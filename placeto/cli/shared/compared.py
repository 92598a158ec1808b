"""What `placeto compare` takes: a model whose training step is split in several ways, or a step as it is."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, NamedTuple

from tyro.conf import Positional, arg

from placeto.cli.shared.graphs import find_graph, is_factory
from placeto.cli.shared.model_config import ModelOptions, is_config, precision_of
from placeto.cli.shared.options import ANY_GRAPH_HELP, CaptureOptions, refuse

if TYPE_CHECKING:
    from placeto.planning.variants import GraphOf
    from placeto.plumbing.progress import ProgressBar
    from placeto.problem.graph import ComputationGraph


class ComparedStep(NamedTuple):
    """A step to compare."""

    name: str
    what: str  # a phrase on the step
    graph_of: GraphOf
    batch: int  # 0 = unknown
    grouped: bool  # whether it can be captured in tensor-parallel groups
    counts: tuple[int, ...]  # numbers of micro-batches to try


@dataclass(frozen=True, kw_only=True)
class ComparedOptions(ModelOptions, CaptureOptions):
    """A model or a graph, and the memory that it must leave free."""

    model: Annotated[
        Positional[str],
        arg(metavar="GRAPH|CONFIG", help=f"{ANY_GRAPH_HELP}; or the config.json of a language model of transformers"),
    ]
    inference: bool = False
    """take the forward pass only, in evaluation mode, in place of a training step"""

    def found(self, bar: ProgressBar) -> ComparedStep:
        """Return the step, which is captured when it is needed.

        Raises:
            UsageError, PlacerError, CaptureError, GraphError: as for GRAPH and CONFIG arguments of other commands.
        """
        if is_config(self.model):
            refuse(
                self,
                ("inference", "run", "optimizer_step"),
                "is for a FACTORY; of a config.json, the training step is compared",
            )
        elif self.inference or self.run or self.optimizer_step or not is_factory(self.model):
            return self._fixed()
        from placeto.capture.trace import parallel_plan

        refuse(self, ("dimensions",), "is for ONNX files; a model says how large its inputs are")
        model = self.find()
        dtypes = precision_of(model.module, self.precision)
        what = f"batch {model.batch}, {dtypes}, {self.optimizer}"
        grouped = bool(parallel_plan(model.module, model.parallel))
        counts = tuple(dict.fromkeys((*self.counts, 1)))
        return ComparedStep(model.name, what, self.captured(model, bar), model.batch, grouped, counts)

    def _fixed(self) -> ComparedStep:
        """Return a step in the number of micro-batches that it has."""
        from placeto.errors import CaptureError

        refuse(self, ("batch", "length"), "is for a training step of a config.json")
        capture = {field.name: getattr(self, field.name) for field in fields(CaptureOptions)}
        if self.micro_batches == "auto":
            capture["micro_batches"] = 1
        name, graph, _ = find_graph(self.model, CaptureOptions(**capture))
        own = graph.num_micro_batches

        def graph_of(count: int, samples: int, width: int) -> ComputationGraph:
            if count != own:
                raise CaptureError(f"{name}: its number of micro-batches is {own}")
            return graph

        return ComparedStep(name, f"{graph.num_ops} ops, {graph.mode}", graph_of, 0, False, (own,))


Compared = Annotated[ComparedOptions, arg(name="")]
