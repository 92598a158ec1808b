"""What `tests/training/test_ranks.py` runs in each of several processes: ``python -m tests.distributed_worker OUT``.

Writes to OUT/rank-R.pt what this rank ended with, by run.
"""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from placeto.errors import TrainingError
from placeto.plumbing.signals import Interruption
from placeto.policies.one_shot.grouper import GrouperConfig
from placeto.policies.placeto import PlacetoConfig
from placeto.problem.problem import PlacementProblem
from placeto.training.config import (
    AnyTrainConfig,
    LearningConfig,
    OneShotLearningConfig,
    TrainConfig,
    TraversalTrainConfig,
    default_config,
)
from placeto.training.learners.iterative import IterativeLearner
from placeto.training.learners.learner import TrainState
from placeto.training.learners.one_shot import OneShotLearner
from placeto.training.learners.traversal import TraversalLearner
from placeto.training.ranks import Ranks
from placeto.training.trainer import train
from tests.toys import random_graph, toy_cluster

PLACERS = ("placeto", "replay", "placeto-paper", "grouper")
LEARNERS = (IterativeLearner, TraversalLearner, OneShotLearner)
ITERATIONS = 4  # half of them supervised, of Placeto
STATES: list[TrainState] = []  # of each training in this process


def problems(*seeds: int) -> dict[str, PlacementProblem]:
    """Graphs of unequal sizes on two devices."""
    return {f"r{s}": PlacementProblem(random_graph(s, 12 + 3 * (s % 3)), toy_cluster(2)) for s in seeds}


def config(placer: str, out: Path) -> AnyTrainConfig:
    """A small training; the iterative one's 9 episodes, the traversal's 5 and the one-shot one's 15 can't be halved.

    "replay" is Placeto that remembers labelled states.
    """
    run: dict[str, Any] = {"iterations": ITERATIONS, "validate_every": 2, "save_every": 2}
    if placer in ("placeto", "replay"):
        remembered = {"replay": 100, "annealed": 0.7, "parts": 0.4} if placer == "replay" else {"replay": 0}
        learning = LearningConfig(reinforcement=0.5, graphs=3, replicas=3, supervised_replicas=3, moves=8, labels=20)
        learning = replace(learning, minibatch=4, **{"annealed": 0.0, "parts": 0.0, "joined": 0.0, **remembered})
        return TrainConfig(str(out), **run, learning=learning, policy=PlacetoConfig(hidden=16))
    base = default_config(placer, str(out))
    if isinstance(base, TraversalTrainConfig):
        return replace(base, **run, learning=replace(base.learning, episodes=5))
    one_shot = OneShotLearningConfig(graphs=3, samples=5, minibatch=2)
    policy = GrouperConfig(hidden=16, groups=4) if placer == "grouper" else replace(base.policy, hidden=16)
    return replace(base, **run, learning=one_shot, policy=policy)


def trained(settings: AnyTrainConfig, **options: bool) -> dict[str, Any]:
    """Train; what this process ended with, and what it reported."""
    said: list[str] = []
    graphs = problems(0, 1, 2, 3), problems(10, 11)
    try:
        numbers = train(settings, *graphs, report=lambda done, note: said.append(note), **options)
    except Interruption as stop:
        numbers = {"signal": stop.number}
    state = STATES[-1]
    return {
        "parameters": {name: value.clone() for name, value in state.policy.state_dict().items()},
        "elite": torch.from_numpy(state.elite.copy()),
        "elite_score": torch.from_numpy(state.elite_score.copy()),
        "torch_random": state.torch_random.get_state(),
        "simulations": state.simulations,
        "iteration": state.iteration,
        "numbers": {tag: float(value) for tag, value in numbers.items() if not tag.startswith("seconds/")},
        "said": len(said),
    }


def remember_states() -> None:
    """Keep the state of each training that begins here."""
    for learner in LEARNERS:

        def initial_state(self: Any, make: Any = learner.initial_state) -> TrainState:
            STATES.append(make(self))
            return STATES[-1]

        learner.initial_state = initial_state  # type: ignore[method-assign]


def main(out: Path) -> None:
    """All runs one after another; in the last but one rank 1 is asked to stop, in the last it dies."""
    remember_states()
    with Ranks.from_environment() as ranks:
        results = {placer: trained(config(placer, out / placer)) for placer in PLACERS}
        iterate = IterativeLearner.iterate

        def asked_to_stop(self: Any, state: TrainState, done: float) -> dict[str, float]:
            if ranks.rank == 1 and state.iteration == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return iterate(self, state, done)

        IterativeLearner.iterate = asked_to_stop  # type: ignore[method-assign]
        results["stopped"] = trained(config("placeto", out / "stopped"))
        IterativeLearner.iterate = iterate  # type: ignore[method-assign]
        results["resumed"] = trained(config("placeto", out / "stopped"), resume=True)
        torch.save(results, out / f"rank-{ranks.rank}.pt")

        def dies(self: Any, state: TrainState, done: float) -> dict[str, float]:
            if ranks.rank == 1 and state.iteration == 1:
                os._exit(0)
            return iterate(self, state, done)

        IterativeLearner.iterate = dies  # type: ignore[method-assign]
        try:
            trained(config("placeto", out / "lost"))
        except TrainingError as problem:
            (out / f"error-{ranks.rank}.txt").write_text(str(problem))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
