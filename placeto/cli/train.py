"""``placeto train``: train a placer that learns, on the graphs of a family or on single graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro import MISSING
from tyro.conf import AvoidSubcommands, arg

from placeto.cli.shared import options as opt
from placeto.cli.shared.common import find_cluster, note, say
from placeto.cli.shared.graphs import find_graph, is_factory
from placeto.errors import TrainingError, UsageError
from placeto.formats.placement import load_placement
from placeto.placers import load_family, load_split
from placeto.plumbing.progress import ProgressBar
from placeto.problem.cluster import Cluster
from placeto.problem.costs import CostModel, load_costs
from placeto.problem.graph import ComputationGraph
from placeto.problem.messages import within
from placeto.problem.problem import PlacementProblem
from placeto.training.checkpoint import FILE_NAME, find_checkpoint, load_checkpoint
from placeto.training.config import AnyTrainConfig, TraversalTrainConfig, check_config
from placeto.training.ranks import Ranks
from placeto.training.recipes import RecipeName, recipe_config
from placeto.training.settings import check_settings
from placeto.training.trainer import DEFAULT_MINUTES, pretrained_config, train
from placeto.training.without_effect import without_effect

_PROFILE_SECONDS = 5.0
_LIMITS = "iterations", "simulations", "minutes"
"""Settings that end a run. The first of them that is given says which share of the run is done."""


@dataclass(frozen=True)
class Arguments:
    """Train a placer that learns, on the train split of a family; its validation split chooses the best parameters.

    The placer placeto learns the exact effects of moves, unless --learning.reinforcement is given. Reinforcement, and
    the other placers, learn from rewards: simulated step times, or with --reward measured the times of steps that are
    run on devices of this machine (--devices). Before, constructive learns to repeat what a search finds. For measured
    steps, GRAPHs are factories as for `placeto capture`.

    With GRAPHs and neither --family nor --validation-graphs, the placer is trained for these graphs alone. They also
    choose the parameters, and the best placement found for each is written to --out. A checkpoint and tensorboard
    curves are always written there. Ctrl-C or SIGTERM saves a checkpoint and ends the training, with exit status 130 or
    143; --resume continues it.
    """

    config: AvoidSubcommands[Annotated[AnyTrainConfig, arg(name="")]]
    cluster: Annotated[opt.OptionalText, arg(help=opt.CLUSTER_HELP)] = None
    dispatch: opt.DispatchName = None
    graphs: opt.GraphArguments = ()
    """graphs to train on in addition to those of --family: files, family:split:index, or file.py:function of models to
    capture"""
    family: opt.OptionalText = None
    """graph family to train on, from `placeto list families`"""
    train_graphs: opt.OptionalCount = None
    """how many graphs of --family to train on; those after its train split are drawn and captured when they are first
    needed, in a second or more each. By default, all of the train split"""
    validation_graphs: Annotated[tuple[str, ...], arg(metavar="GRAPH ...")] = ()
    """validation graphs in addition to those of --family, named as GRAPH is"""
    checkpoint: opt.OptionalPath = None
    """fine-tune: begin with the parameters and the policy settings of this checkpoint or run directory, by default
    without a supervised stage"""
    recipe: RecipeName = "ours"
    """where settings that are not given come from: ours, or the paper of the placer (seq2seq, grouper or gdp)"""
    resume: bool = False
    """continue from the checkpoint in --out"""
    reward: Literal["simulated", "measured"] = "simulated"
    """whether reinforcement learns from simulated or measured step times"""
    devices: opt.Names = ()
    """in place of --cluster, where measured steps run: devices of this machine, such as cpu:0,cpu:1,cuda:0"""
    settings: opt.Settings = ()


def defaults(arguments: Sequence[str]) -> Arguments:
    """Return the values of options that aren't given, which depend on --placer, --recipe and --checkpoint."""
    placer, checkpoint = _value(arguments, "--placer"), _value(arguments, "--checkpoint")
    recipe: Any = "paper" if _value(arguments, "--recipe") == "paper" else "ours"
    missing: Any = MISSING
    if checkpoint is None:
        return Arguments(recipe_config(placer or "placeto", recipe, missing), recipe=recipe)
    if recipe == "paper":
        raise UsageError(
            "--recipe paper: with --checkpoint, the settings are those of the checkpoint; leave out one of the two"
        )
    config = pretrained_config(checkpoint, load_checkpoint(checkpoint), missing)
    if placer not in (None, config.placer):
        raise UsageError(f"--checkpoint {checkpoint}: holds the placer {config.placer!r}, not {placer!r}")
    return Arguments(config)


def _usual(arguments: Arguments, initial: dict[str, Any] | None) -> AnyTrainConfig:
    """Return the settings of a training for which none is given; `initial` is the checkpoint to begin with."""
    config = arguments.config
    if initial is not None and arguments.checkpoint is not None:
        return pretrained_config(arguments.checkpoint, initial, config.out)
    return recipe_config(config.placer, arguments.recipe, config.out)


def run(arguments: Arguments) -> None:
    """Train, with a progress bar."""
    config = arguments.config
    check_config(config)
    out = Path(config.out)
    if arguments.resume and out.is_dir() and not (out / FILE_NAME).exists():
        raise UsageError(f"--resume: nothing was saved in {out} yet, it has no {FILE_NAME}; leave out --resume")
    if arguments.resume:
        config = _as_long(config)
    if (out / FILE_NAME).exists() and not arguments.resume:
        raise UsageError(f"--out {out}: holds a checkpoint already; add --resume to go on, or choose another directory")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: must be a directory")
    if arguments.family is None and not arguments.graphs:
        raise UsageError("nothing to train on: give --family NAME, or GRAPHs")
    if arguments.family is None:
        opt.refuse(arguments, ("train_graphs",), "is for the graphs of a --family; leave it out, or give one")
    if not any(map(is_factory, (*arguments.graphs, *arguments.validation_graphs))):
        opt.refuse(arguments, ("settings",), "is for factories, and no GRAPH is one; leave it out")
    initial = load_checkpoint(arguments.checkpoint) if arguments.checkpoint is not None else None
    for sentence in without_effect(config, _usual(arguments, initial), initial is not None):
        note(sentence)
    if arguments.reward == "measured":
        _train_measured(replace(arguments, config=config), initial)
        return
    opt.refuse(arguments, ("devices",), "is for --reward measured; add that, or give --cluster in place of --devices")
    if arguments.cluster is None:
        raise UsageError("--cluster is needed, a name from `placeto list clusters`, or a cluster file")
    cluster, costs = find_cluster(arguments.cluster, arguments.dispatch), load_costs(config.costs)
    with Ranks.from_environment(config.device) as ranks:
        _train(replace(arguments, config=config), cluster, costs, initial, ranks)


def _as_long(config: AnyTrainConfig) -> AnyTrainConfig:
    """Return the settings of a resumed run: it ends where it was to end before, unless a limit is given.

    Raises:
        TrainingError: the checkpoint's limits aren't those of a run.
    """
    before = load_checkpoint(config.out).get("config", {})
    planned = replace(config, **{name: before.get(name) for name in _LIMITS})
    with within(TrainingError, find_checkpoint(config.out)):
        check_settings(planned)
    if all(getattr(config, name) is None for name in _LIMITS):
        return planned
    if (now := _length(config)) != (then := _length(planned)):
        note(
            f"--resume: the run was planned with {then}, and now has {now}. The learning rate follows the share "
            "that is done, so that it jumps; to go on as planned, leave out the limit"
        )
    return config


def _length(config: AnyTrainConfig) -> str:
    """Return the limit that the learning rate follows."""
    limits = {name: getattr(config, name) for name in _LIMITS}
    name = next((name for name in _LIMITS if limits[name] is not None), "minutes")
    return f"--{name} {limits[name] or DEFAULT_MINUTES:g}"


def _train(
    arguments: Arguments, cluster: Cluster, costs: CostModel, initial: dict[str, Any] | None, ranks: Ranks
) -> None:
    """Train together with the other ranks; the first rank shows the progress."""
    config, family, out = arguments.config, arguments.family, Path(arguments.config.out)
    single = family is None and not arguments.validation_graphs

    def problems_of(split: str, names: Sequence[str]) -> dict[str, PlacementProblem]:
        count = arguments.train_graphs if split == "train" else None
        graphs = _graphs(family, split, names, arguments.settings, count)
        return {name: PlacementProblem(graph, cluster, costs) for name, graph in graphs.items()}

    def load() -> tuple[dict[str, PlacementProblem], dict[str, PlacementProblem] | None]:
        problems = problems_of("train", arguments.graphs)
        return problems, None if single else problems_of("validation", arguments.validation_graphs)

    problems, validation = ranks.first_then_others(load)
    if not ranks.first:
        train(config, problems, validation, initial=initial, resume=arguments.resume)
        return
    if single:
        note("no validation graphs: the training graphs choose the parameters that are kept")
    with ProgressBar("training", total=1.0) as bar:
        numbers = train(config, problems, validation, initial=initial, resume=arguments.resume, report=bar.update)
    _print_validation(numbers, "end" if isinstance(config, TraversalTrainConfig) else "best_met")
    if single:
        _print_best(problems, out)
    say(f"checkpoint   {out / FILE_NAME}")
    say(f"curves       tensorboard --logdir {out}")


def _train_measured(arguments: Arguments, initial: dict[str, Any] | None) -> None:
    """Train for the graphs of factories alone, by measured times of steps that are run."""
    from placeto.cli.profile import real_step_of
    from placeto.problem.cluster import load_cluster, save_cluster
    from placeto.problem.costs.profiled import load_profiled, save_profiled
    from placeto.runtime.local_devices import open_devices
    from placeto.runtime.measuring.measured import MeasuredSteps
    from placeto.runtime.measuring.profiling import profile

    config, out = arguments.config, Path(arguments.config.out)
    if not arguments.devices or arguments.cluster is not None:
        raise UsageError("--reward measured: give --devices of this machine, as cpu:0,cpu:1, and no --cluster")
    if arguments.family is not None or arguments.validation_graphs or not arguments.graphs:
        raise UsageError("--reward measured: needs factories, package.module:function or file.py:function, to run")
    if getattr(config.learning, "supervised", 0.0):
        raise UsageError("--reward measured: the supervised stage is simulated; add --learning.reinforcement 1")
    devices = open_devices(arguments.devices)
    steps = {name: real_step_of(name, opt.TraceOptions(settings=arguments.settings)) for name in arguments.graphs}
    files = out / "cluster.json", out / "costs.json"
    if not arguments.resume:
        made = profile(list(steps.values()), devices, _PROFILE_SECONDS)
        out.mkdir(parents=True, exist_ok=True)
        save_cluster(made.cluster, files[0])
        save_profiled(made.costs, files[1])
    cluster, costs = load_cluster(files[0]), load_profiled(files[1])
    problems = {name: PlacementProblem(step.capture.graph, cluster, costs) for name, step in steps.items()}
    measure = MeasuredSteps(list(problems.values()), list(steps.values()), devices)
    with ProgressBar("training", total=1.0) as bar:
        train(config, problems, None, initial=initial, resume=arguments.resume, report=bar.update, measure=measure)
    for number, name in enumerate(problems):
        best, one = measure.best_us(number), measure.one_device_us[number]
        say(f"best met     {name}: {best:.1f} us measured, {best / one:.4f} of one device")
    say(f"checkpoint   {out / FILE_NAME}")
    say(f"curves       tensorboard --logdir {out}")


def _print_validation(numbers: Mapping[str, float], judged: str) -> None:
    """Print what the policy reaches in validation, beside its controls.

    Args:
        numbers: what `train` returned.
        judged: "end" or "best_met", by which the parameters were chosen.
    """
    kept, controls = numbers["hparam/validation"], {"before training": "untrained", "random decisions": "random"}
    beside = {name: numbers.get(f"validation/{tag}_{judged}") for name, tag in controls.items()}
    others = {"METIS": "metis", "best cheap heuristic": "heuristic", "multilevel": "multilevel"}
    all_controls = beside | {name: numbers.get(f"validation/{tag}") for name, tag in others.items()}
    shown = "; ".join(f"{name} {value:.4f}" for name, value in all_controls.items() if value is not None)
    if not shown:  # nothing was validated: a run was resumed that had ended
        note("nothing was trained: the run had reached its limit before; to go on, give a higher one")
        return
    error = numbers.get("validation/error")  # none of a single graph, nor of runs of earlier versions
    with_error = f"{kept:.4f}" if error is None else f"{kept:.4f} ± {error:.4f}"
    say(f"validation   {with_error} of the best single device; {shown}")
    better = [name for name, value in beside.items() if value is not None and value <= kept]
    if better:
        note(f"in validation the policy is no better than {' and '.join(better)}: train longer, or look at the curves")


def _print_best(problems: dict[str, PlacementProblem], out: Path) -> None:
    """Print the best placement met of each graph, in a line each."""
    for index, (name, problem) in enumerate(problems.items()):
        path = out / f"placement-{index}.json"
        if path.exists():
            us = load_placement(path).makespan_us or 0.0
            single = problem.single_device_us or 1.0  # 0 where nothing takes time
            say(f"best met     {name}: {us:.1f} us, {us / single:.4f} of the best single device, {path}")


def _value(arguments: Sequence[str], option: str) -> str | None:
    """Return what is given for an option, before the arguments are parsed; None if nothing is.

    If the option is given twice, the last value counts, as for tyro. Tyro refuses an invalid value later.
    """
    value = None
    for this, following in zip(arguments, [*arguments, None][1:], strict=True):
        if this == option:
            value = following
        elif this.startswith(f"{option}="):
            value = this.removeprefix(f"{option}=")
    return value


def _graphs(
    family: str | None, split: str, names: Sequence[str], settings: tuple[str, ...], count: int | None
) -> dict[str, ComputationGraph]:
    """Return the first `count` graphs of a split of a family, if one is given, and the named ones.

    If `count` is None, they are all graphs of the split. The settings are for factories.
    """
    there = family is not None and load_family(family).splits.get(split, 0) > 0
    if family is not None and not there and not names:
        instead = "GRAPHs to train on" if split == "train" else "--validation-graphs"
        raise UsageError(f"--family {family}: has no graphs in its split {split!r}; give {instead}")
    graphs = load_split(family, split, count) if family is not None and there else {}
    for argument in names:
        name, graph, _ = find_graph(argument, opt.CaptureOptions(settings=settings if is_factory(argument) else ()))
        graphs[name] = graph
    return graphs
