"""``placeto train``: train a policy on the graphs of a family, or on single graphs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from tyro import MISSING
from tyro.conf import AvoidSubcommands, arg

from placeto.cli.common import (
    DispatchOption,
    GraphArguments,
    GraphList,
    OptionalPath,
    OptionalText,
    UsageError,
    check_positive,
    find_cluster,
)
from placeto.formats.placement import load_placement
from placeto.placers import load_split, resolve_graph
from placeto.problem.cluster import Cluster
from placeto.problem.costs import CostModel, load_costs
from placeto.problem.problem import PlacementProblem
from placeto.progress import ProgressBar
from placeto.training.checkpoint import FILE_NAME, load_checkpoint
from placeto.training.config import AnyTrainConfig, check_config, default_config
from placeto.training.ranks import Ranks
from placeto.training.trainer import pretrained_config, train


@dataclass(frozen=True)
class Arguments:
    """Train a policy on the train split of a family; its validation split chooses the parameters that are kept.

    With GRAPHs and neither --family nor --validation-graphs it is trained for these very graphs: they choose the
    parameters too, and the best placement met of each is written to --out. A checkpoint and tensorboard curves are
    always written there. Ctrl-C saves first; --resume goes on.
    """

    cluster: str
    """a name from `placeto list clusters`, or a cluster file"""
    config: AvoidSubcommands[Annotated[AnyTrainConfig, arg(name="")]]
    dispatch: DispatchOption = None
    """which of its ready ops a device runs next: fifo, priority or list (program order); the cluster's if not given"""
    graphs: GraphArguments = ()
    """files or family:split:index to train on, in addition to those of --family"""
    family: OptionalText = None
    """graph family to train on, from `placeto list families`"""
    validation_graphs: GraphList = ()
    """validation graphs, in addition to those of --family: files or family:split:index"""
    checkpoint: OptionalPath = None
    """begin with the parameters, and the policy settings, of this checkpoint or run directory: fine-tuning, by default
    without warm-up"""
    resume: bool = False
    """go on from the checkpoint in --out"""


def defaults(arguments: Sequence[str]) -> Arguments:
    """What is trained unless told otherwise: it depends on --placer and on --checkpoint."""
    placer, checkpoint = _value(arguments, "--placer"), _value(arguments, "--checkpoint")
    missing: Any = MISSING
    if checkpoint is None:
        return Arguments(cluster=missing, config=default_config(placer or "placeto", missing))
    config = pretrained_config(checkpoint, load_checkpoint(checkpoint), missing)
    if placer not in (None, config.placer):
        raise UsageError(f"--checkpoint {checkpoint}: holds the placer {config.placer!r}, not {placer!r}")
    return Arguments(cluster=missing, config=config)


def run(arguments: Arguments) -> None:
    """Train, with a progress bar."""
    config = arguments.config
    check_positive("--minutes", config.minutes)
    check_positive("--iterations", config.iterations)
    check_positive("--simulations", config.simulations)
    check_config(config)
    out = Path(config.out)
    if arguments.resume and config.minutes is None and config.iterations is None and config.simulations is None:
        before = load_checkpoint(out).get("config", {})
        limits = {name: before.get(name) for name in ("minutes", "iterations", "simulations")}
        config = replace(config, **limits)
    if (out / FILE_NAME).exists() and not arguments.resume:
        raise UsageError(f"--out {out}: holds a checkpoint already; add --resume to go on, or choose another directory")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: must be a directory")
    if arguments.family is None and not arguments.graphs:
        raise UsageError("nothing to train on: give --family NAME, or GRAPHs")
    cluster, costs = find_cluster(arguments.cluster, arguments.dispatch), load_costs(config.costs)
    initial = load_checkpoint(arguments.checkpoint) if arguments.checkpoint is not None else None
    with Ranks.from_environment(config.device) as ranks:
        _train(replace(arguments, config=config), cluster, costs, initial, ranks)


def _train(
    arguments: Arguments, cluster: Cluster, costs: CostModel, initial: dict[str, Any] | None, ranks: Ranks
) -> None:
    """Train together with the other ranks, of which the first one shows how it goes."""
    config, family, out = arguments.config, arguments.family, Path(arguments.config.out)
    single = family is None and not arguments.validation_graphs

    def load() -> tuple[dict[str, PlacementProblem], dict[str, PlacementProblem] | None]:
        problems = _problems(family, "train", arguments.graphs, cluster, costs)
        return problems, None if single else _problems(
            family, "validation", arguments.validation_graphs, cluster, costs
        )

    problems, validation = ranks.first_then_others(load)
    if not ranks.first:
        train(config, problems, validation, initial=initial, resume=arguments.resume)
        return
    if single:
        print("no validation graphs: the training graphs choose the parameters that are kept", file=sys.stderr)
    with ProgressBar("training", total=1.0) as bar:
        train(config, problems, validation, initial=initial, resume=arguments.resume, report=bar.update)
    if single:
        _print_best(problems, out)
    print(f"checkpoint   {out / FILE_NAME}")
    print(f"curves       tensorboard --logdir {out}")


def _print_best(problems: dict[str, PlacementProblem], out: Path) -> None:
    """The best placement met of each graph, in a line."""
    for index, (name, problem) in enumerate(problems.items()):
        path = out / f"placement-{index}.json"
        if path.exists():
            us = load_placement(path).makespan_us or 0.0
            single = problem.single_device_us or 1.0  # 0 where nothing takes time
            print(f"best met     {name}: {us:.1f} us, {us / single:.4f} of the best single device, {path}")


def _value(arguments: Sequence[str], option: str) -> str | None:
    """What is given for an option, before the arguments are parsed; tyro complains about what is wrong with it."""
    for this, following in zip(arguments, [*arguments, None][1:], strict=True):
        if this == option:
            return following
        if this.startswith(f"{option}="):
            return this.removeprefix(f"{option}=")
    return None


def _problems(
    family: str | None, split: str, graphs: tuple[str, ...], cluster: Cluster, costs: CostModel
) -> dict[str, PlacementProblem]:
    named = load_split(family, split) if family is not None else {}
    named |= dict(map(resolve_graph, graphs))
    return {name: PlacementProblem(graph, cluster, costs) for name, graph in named.items()}
