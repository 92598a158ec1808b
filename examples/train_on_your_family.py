"""Trains a policy on a family of models, and places models of the family that it has never seen.

    python examples/train_on_your_family.py --minutes 3

A family is a function that makes models of different sizes. Here each model has towers of linear layers; how many, how
wide and how deep is drawn at random. The table compares the trained policy with the same network before training and
with heuristics, at an equal budget.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from placeto import Cluster, ComputationGraph, PlacementProblem, capture_training, load_cluster
from placeto.evaluation.comparison import PlacerSpec, evaluate
from placeto.evaluation.summary import markdown_table, summarize
from placeto.training.checkpoint import UNTRAINED
from placeto.training.config import LearningConfig, TrainConfig
from placeto.training.trainer import train


class Towers(nn.Module):
    """Towers of linear layers over the same input, whose results are added."""

    def __init__(self, towers: int, depth: int, width: int) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())))
            for _ in range(towers)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, width) -> (B, width)."""
        return torch.stack([tower(x) for tower in self.towers]).sum(0)


def graph(name: str, seed: int) -> ComputationGraph:
    """The training step of a model that is drawn at random."""
    random = np.random.default_rng(seed)
    width = 128 * int(random.integers(4, 17))
    with torch.device("meta"):
        model, x = Towers(int(random.integers(3, 7)), int(random.integers(3, 7)), width), torch.empty(512, width)
    return capture_training(model, [x], lambda y: y.square().mean(), name=name)


def problems(split: str, count: int, cluster: Cluster, first_seed: int) -> dict[str, PlacementProblem]:
    """Training steps on a cluster, by name."""
    graphs = [graph(f"towers:{split}:{index}", first_seed + index) for index in range(count)]
    return {each.name: PlacementProblem(each, cluster) for each in graphs}


def main(out: Path, count: int, minutes: float | None, iterations: int | None, annealed: float) -> str:
    """Train, and return the table of the comparison on unseen graphs."""
    cluster = load_cluster("4xv100")
    training, validation = problems("train", count, cluster, 0), problems("validation", 2, cluster, 1000)
    config = TrainConfig(
        str(out), minutes=minutes, iterations=iterations, learning=LearningConfig(annealed=annealed), validate_every=5
    )
    train(config, training, validation, report=lambda done, note: print(f"{done:4.0%} {note}"))
    unseen = {name: problem.graph for name, problem in problems("test", count, cluster, 2000).items()}
    networks = {"trained": str(out), "untrained": str(out / UNTRAINED)}
    specs = [PlacerSpec(f"{label}, one pass", path) for label, path in networks.items()]
    placers = networks | {"multilevel": "multilevel", "etf": "etf"}
    specs += [PlacerSpec(label, placer, 100) for label, placer in placers.items()]
    table = markdown_table(summarize(evaluate(unseen, cluster, specs, processes=1)))
    print(table)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/towers"), help="checkpoint and tensorboard curves")
    parser.add_argument("--minutes", type=float, default=3.0)
    settings = parser.parse_args()
    main(settings.out, 12, settings.minutes, None, LearningConfig().annealed)
