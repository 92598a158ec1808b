"""``placeto train``: train a policy on the graphs of a family."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from placeto.checkpoint import FILE_NAME, load_checkpoint
from placeto.cluster import Cluster, load_cluster
from placeto.commands.common import GraphList, OptionalText, UsageError, check_positive
from placeto.cost import PlacementProblem
from placeto.load import load_split, resolve_graph
from placeto.progress import ProgressBar
from placeto.trainer import TrainConfig, train


@dataclass(frozen=True)
class Arguments:
    """Train a policy on the train split of a family; its validation split chooses the parameters that are kept.

    Writes a checkpoint and tensorboard curves to --out. Ctrl-C saves first; --resume goes on.
    """

    cluster: str
    """a name from `placeto list clusters`, or a cluster file"""
    config: Annotated[TrainConfig, arg(name="")]
    family: OptionalText = None
    """graph family to train on, from `placeto list families`"""
    graphs: GraphList = ()
    """more training graphs, or all of them: files or family:split:index"""
    validation_graphs: GraphList = ()
    """more validation graphs: files or family:split:index"""
    resume: bool = False
    """go on from the checkpoint in --out"""


def run(arguments: Arguments) -> None:
    """Train, with a progress bar."""
    config = arguments.config
    check_positive("--minutes", config.minutes)
    check_positive("--iterations", config.iterations)
    out = Path(config.out)
    if arguments.resume and config.minutes is None and config.iterations is None:
        before = load_checkpoint(out)["config"]
        config = replace(config, minutes=before["minutes"], iterations=before["iterations"])
    if (out / FILE_NAME).exists() and not arguments.resume:
        raise UsageError(f"--out {out}: holds a checkpoint already; add --resume to go on, or choose another directory")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: must be a directory")
    if arguments.family is None and not (arguments.graphs and arguments.validation_graphs):
        raise UsageError("nothing to train on: give --family NAME, or --graphs and --validation-graphs")
    cluster = load_cluster(arguments.cluster)
    problems = _problems(arguments.family, "train", arguments.graphs, cluster)
    validation = _problems(arguments.family, "validation", arguments.validation_graphs, cluster)
    with ProgressBar("training", total=1.0) as bar:
        train(config, problems, validation, resume=arguments.resume, report=bar.update)
    print(f"checkpoint   {out / FILE_NAME}")
    print(f"curves       tensorboard --logdir {out}")


def _problems(family: str | None, split: str, graphs: tuple[str, ...], cluster: Cluster) -> dict[str, PlacementProblem]:
    named = load_split(family, split) if family is not None else {}
    named |= dict(map(resolve_graph, graphs))
    return {name: PlacementProblem(graph, cluster) for name, graph in named.items()}
