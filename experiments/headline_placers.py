"""The placers of `experiments.headline`, one line of `PLACERS` each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from experiments.guided import shipped, untrained
from experiments.trajectories import Clock, Met, Placer
from placeto.formats.placement import load_placement
from placeto.heuristics import HEURISTICS
from placeto.heuristics.local_search.annealing import annealing
from placeto.heuristics.local_search.multilevel import v_cycles
from placeto.heuristics.local_search.starts import Method
from placeto.heuristics.naive import try_single
from placeto.placers import load_placer
from placeto.policies.guided_search import GuidedPlacer
from placeto.policies.placeto_paper import PlacetoPaperConfig
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult
from placeto.training.checkpoint import checkpoint_path, load_checkpoint
from placeto.training.config import (
    AnyTrainConfig,
    LearningConfig,
    TrainConfig,
    default_config,
)
from placeto.training.recipes import RecipeName, recipe_config
from placeto.training.trainer import train

MakeConfig = Callable[[PlacementProblem, str], AnyTrainConfig]
"""Settings of training on one problem alone, from scratch; the text is the directory of the run."""
NEVER = 10**9  # iterations
SCRATCH = LearningConfig(
    reinforcement=0.85,
    graphs=1,
    replicas=4,
    starts="single",
    supervised_moves=40,
    labels=4,
    replay=0,
    annealed=0.0,
    parts=0.0,
    joined=0.0,
)
"""Mostly reinforcement, with fewer labels and episodes an iteration than for a family: here every placement counts."""


def by_recipe(placer: str, recipe: RecipeName, problem: PlacementProblem, out: str) -> AnyTrainConfig:
    """The settings of a one-shot placer, ours or those of its paper."""
    config = recipe_config(placer, recipe, out)
    return replace(config, learning=replace(config.learning, graphs=1))  # type: ignore[arg-type]


def placeto_paper(problem: PlacementProblem, out: str) -> AnyTrainConfig:
    """The policy and recipe of Addanki et al. 2019, from a random placement."""
    policy = PlacetoPaperConfig(devices=problem.num_devices)
    return replace(default_config("placeto-paper", out), policy=policy)


def placeto(problem: PlacementProblem, out: str) -> AnyTrainConfig:
    """Ours, its episodes from one device: nothing imitates a search, and no heuristic is tried."""
    return TrainConfig(out, learning=SCRATCH)


def trained(make: MakeConfig, problem: PlacementProblem, budget: int, seed: int, clock: Clock) -> Met:
    """Train from scratch on the problem alone: what was met."""
    with TemporaryDirectory() as out:
        return _train(make(problem, out), problem, budget, seed, clock)


def trained_then_pass(problem: PlacementProblem, budget: int, seed: int, clock: Clock) -> Met:
    """Train Placeto from scratch on the problem alone: the better of what was met and of its pass afterwards."""
    with TemporaryDirectory() as out:
        met = _train(placeto(problem, out), problem, budget, seed, clock)
        own = from_one_device(load_placer(out)).one_pass(problem, seed=seed)
    if not own.fits or (met.fits and met.makespan_us <= own.makespan_us):
        return met
    last = (budget, met.history[-1][1] + own.seconds, own.makespan_us)
    return Met(own.makespan_us, True, met.simulations, [*met.history, last])


def _train(config: AnyTrainConfig, problem: PlacementProblem, budget: int, seed: int, clock: Clock) -> Met:
    limits = {"simulations": budget, "seed": seed, "validate_every": NEVER, "save_every": NEVER}
    config = replace(config, **limits)  # type: ignore[arg-type]
    train(config, {"graph": problem}, None, report=clock.tick)
    saved, best = load_checkpoint(config.out), load_placement(Path(config.out) / "placement-0.json")
    if saved["simulations"] < budget:
        raise KeyboardInterrupt  # a signal ended it
    points = [(max(1, n), seconds, score * problem.single_device_us) for n, seconds, score in saved["improvements"][0]]
    return Met(points[-1][2], bool(best.fits), saved["simulations"], points)


def from_scratch(make: MakeConfig) -> Placer:
    """A policy trained on each problem alone."""
    return Placer(partial(trained, make), partial(_training, make))


def _training(make: MakeConfig, problem: PlacementProblem) -> object:
    return asdict(make(problem, ""))


def from_one_device(placer: object) -> GuidedPlacer:
    """The same policy and search, which begin with all on one device in place of the constructive placers."""
    assert isinstance(placer, GuidedPlacer)
    return GuidedPlacer(placer.policy, placer.env, placer.search, try_single)


def _checkpoint(problem: PlacementProblem) -> object:
    return sha256(checkpoint_path("pretrained").read_bytes()).hexdigest()


def _rule(name: str, problem: PlacementProblem, budget: int, seed: int, clock: Clock) -> Met:
    return _met(HEURISTICS[name](problem))


def _random(problem: PlacementProblem, budget: int, seed: int, clock: Clock) -> Met:
    return _met(HEURISTICS["random"](problem, simulations=budget, seed=seed))


def _policy(as_shipped: bool, learned: bool, problem: PlacementProblem, budget: int, seed: int, clock: Clock) -> Met:
    placer = shipped() if learned else untrained(seed)
    return _met((placer if as_shipped else from_one_device(placer))(problem, simulations=budget, seed=seed))


def _pass(learned: bool, problem: PlacementProblem, budget: int, seed: int, clock: Clock) -> Met:
    placer = shipped() if learned else untrained(seed)
    return _met(from_one_device(placer).one_pass(problem, seed=seed))


def _search(method: Method, problem: PlacementProblem, budget: int, seed: int, clock: Clock) -> Met:
    evaluator = Evaluator(problem, None, budget)
    try_single(evaluator, seed)
    method(evaluator, np.random.default_rng(seed))
    return _met(evaluator.result())


def _met(result: PlacementResult) -> Met:
    return Met(result.makespan_us, bool(result.fits), result.simulations, result.history)


COLOCRL = ("ColocRL, its recipe", "ColocRL, ours")
GROUPER = ("grouper, its recipe", "grouper, ours")
GDP = ("GDP, its recipe", "GDP, ours")
MLP = "MLP without graph"
FIXED = ("one device", "expert", "METIS", "HEFT", "ETF")
SCRATCH_PAPER, SCRATCH_OURS = "placeto-paper from scratch", "placeto from scratch"
POLICY, UNTRAINED = "shipped policy from one device", "untrained policy from one device"
AS_SHIPPED, ANNEALING, MULTILEVEL = "placeto as shipped", "annealing from one device", "multilevel from one device"
PLACERS: dict[str, Placer] = {
    "one device": Placer(partial(_rule, "single"), seeded=False),
    "expert": Placer(partial(_rule, "expert"), seeded=False),
    "METIS": Placer(partial(_rule, "metis"), seeded=False),
    "HEFT": Placer(partial(_rule, "heft"), seeded=False),
    "ETF": Placer(partial(_rule, "etf"), seeded=False),
    "random placements": Placer(_random),
    POLICY: Placer(partial(_policy, False, True), _checkpoint),
    COLOCRL[1]: from_scratch(partial(by_recipe, "seq2seq", "ours")),
    GROUPER[1]: from_scratch(partial(by_recipe, "grouper", "ours")),
    GDP[1]: from_scratch(partial(by_recipe, "gdp", "ours")),
    MLP: from_scratch(partial(by_recipe, "mlp", "ours")),
    UNTRAINED: Placer(partial(_policy, False, False), _checkpoint),
    AS_SHIPPED: Placer(partial(_policy, True, True), _checkpoint),
    ANNEALING: Placer(partial(_search, annealing)),
    MULTILEVEL: Placer(partial(_search, v_cycles)),
    SCRATCH_OURS: from_scratch(placeto),
    SCRATCH_PAPER: from_scratch(placeto_paper),
    COLOCRL[0]: from_scratch(partial(by_recipe, "seq2seq", "paper")),
    GROUPER[0]: from_scratch(partial(by_recipe, "grouper", "paper")),
    GDP[0]: from_scratch(partial(by_recipe, "gdp", "paper")),
}
"""Lines of the tables."""
UNSEEN, ON_IT, FRESH = "zero-shot: one pass", "trained on that graph", "one pass, untrained"
ZERO_SHOT: dict[str, Placer] = {
    UNSEEN: Placer(partial(_pass, True), _checkpoint, seeded=False),
    ON_IT: Placer(trained_then_pass, partial(_training, placeto)),
    FRESH: Placer(partial(_pass, False), _checkpoint),
}
"""Those of the distributions over families, all from one device."""
