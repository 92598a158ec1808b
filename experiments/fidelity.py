"""How near are simulated steps to measured ones, on two cores of this machine?

python -m experiments.fidelity [--placements 40] [--seconds 20] [--out runs/fidelity]

Training steps of eight models, two of them in micro-batches, are profiled alone on one core. Placements of each, by
rules, by search, and with some or many groups of these moved by chance, are simulated with the profiled costs and run,
in turns; what a turn of all has in common, such as the clock of that moment, is taken out. Noise is measured on the
same runs: the median of every other run of a placement over the median of those between; of itself is the Spearman
correlation of these two. Corrected: costs with the ops' times inside the fastest placement, as `placeto tune` takes
them. Then each model as it is: one core, the best placement, eager with one and two threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from torch import Tensor, nn

from experiments.command import command
from experiments.harness import measure_cells
from experiments.panels import scatter_figure
from experiments.tables import markdown, publish
from graphs import inception_v3
from placeto.placers import load_placer
from placeto.problem.grouping import expand, group_ops
from placeto.problem.problem import PlacementProblem
from placeto.runtime.local_devices import LocalDevice, open_devices
from placeto.runtime.measuring.profiling import profile
from placeto.runtime.measuring.tuning import corrected, in_turns
from placeto.runtime.placed import PlacedStep
from placeto.runtime.real_steps import RealStep, filled, real_training
from placeto.simulator.evaluator import PlacementResult
from placeto.simulator.schedule import simulate

RULES = ("heft", "etf", "metis", "roundrobin", "random")
MOVED = (0.02, 0.05, 0.1, 0.2, 0.4)  # share of groups moved by chance
HEAD = ("model", "placements", "spread", "Spearman", "error", "bias", "corrected", "noise", "of itself", "one core, ms",
        "best, ms", "eager 1, ms", "eager 2, ms", "best / one core")  # fmt: skip


@dataclass(frozen=True)
class Fidelity:
    """Run placements, and compare."""

    out: Path = Path("runs/fidelity")
    """folder for the picture"""
    placements: int = 40
    """of each model"""
    seconds: float = 60.0
    """of runs of each model's placements; each is run five times at least"""
    profile_seconds: float = 5.0
    """of profiling each model"""
    models: tuple[str, ...] = ()
    """only these; all if not given"""
    seed: int = 0
    """of the placements"""


Steps = dict[str, Callable[..., RealStep]]
"""Name -> captures the step, given its name."""


class Words(nn.Module):
    """A language model: embedding, a recurrent net or a transformer, and a classifier."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(1000, 128), body, nn.Linear(width, 1000)

    def forward(self, words: Tensor) -> Tensor:
        """(B, T) words -> (B T, 1000) logits."""
        out = self.body(self.embedding(words))
        return self.head(out[0] if isinstance(out, tuple) else out).flatten(0, 1)


def steps_of_one_batch() -> Steps:
    """Five models, with inputs at random."""
    torch.manual_seed(0)
    entropy = nn.functional.cross_entropy
    sizes = (256, 1024, 512, 512, 10)
    mlp = nn.Sequential(*(layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.GELU())))
    blocks: list[nn.Module] = []
    for a, b in ((3, 16), (16, 32), (32, 64)):
        for c in (a, b):
            blocks += [nn.Conv2d(c, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
        blocks.append(nn.MaxPool2d(2))
    cnn = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(1024, 10))
    lstm = Words(nn.LSTM(128, 256, 2, batch_first=True), 256)
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    transformer = Words(nn.TransformerEncoder(layer, 3), 128)

    def classes(count: int, most: int) -> list[Tensor]:
        return [torch.randint(most, (count,))]

    with filled():
        inception = inception_v3.training_step(inception_v3.Network(2, width=0.5))
    return {
        "MLP": partial(real_training, mlp, [torch.randn(64, 256)], entropy, targets=classes(64, 10)),
        "CNN": partial(real_training, cnn, [torch.randn(16, 3, 32, 32)], entropy, targets=classes(16, 10)),
        "LSTM": partial(real_training, lstm, [torch.randint(1000, (16, 24))], entropy, targets=classes(384, 1000)),
        "transformer": partial(
            real_training, transformer, [torch.randint(1000, (8, 64))], entropy, targets=classes(512, 1000)
        ),
        "inception_v3": partial(real_training, *inception[:2], inception.loss, targets=inception.targets),
    }


class Towers(nn.Module):
    """Two towers of dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU()))) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, 512) -> (B, 512)."""
        return self.towers[0](x) + self.towers[1](x)


def all_steps() -> Steps:
    """Towers, five more models, and two models in four micro-batches."""
    torch.manual_seed(0)
    towers = partial(real_training, Towers(), [torch.randn(256, 512)], lambda y: y.square().mean())
    return {"towers": towers, **steps_of_one_batch(), **steps_in_micro_batches()}


def steps_in_micro_batches() -> Steps:
    """A transformer and an MLP whose batch is split into four."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    transformer = Words(nn.TransformerEncoder(layer, 4), 128)
    words, following = torch.randint(1000, (2, 32, 64))
    mlp = nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(512, 512), nn.GELU())))
    features, labels = torch.randn(512, 512), torch.randint(512, (512,))

    def entropy(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target.flatten())

    split = partial(real_training, micro_batches=4)
    return {
        "transformer, 4 micro-batches": partial(split, transformer, [words], entropy, targets=[following]),
        "MLP, 4 micro-batches": partial(split, mlp, [features], entropy, targets=[labels]),
    }


@dataclass(frozen=True, eq=False)
class Measurement:
    """One model's placements.

    Legend: P placements.
    """

    name: str
    simulated_us: np.ndarray  # (P,)
    corrected_us: np.ndarray  # (P,)
    measured_us: np.ndarray  # (P,) medians over rounds, without what all placements of a round have in common
    odd: np.ndarray  # (P,) medians of every other run, of the mean placement's
    even: np.ndarray  # (P,) of those between
    one_core_us: float
    best_us: float
    eager_us: tuple[float, float]  # with one and two threads

    def row(self) -> list[str]:
        """For the table."""
        error = self.simulated_us / self.measured_us - 1.0
        better = np.abs(self.corrected_us / self.measured_us - 1.0)
        order = spearmanr(self.simulated_us, self.measured_us).statistic
        times = (self.one_core_us, self.best_us, *self.eager_us)
        return [
            self.name,
            str(len(error)),
            f"{self.measured_us.max() / self.measured_us.min():.2f}",
            f"{order:.3f}",
            f"{np.median(np.abs(error)):.1%}",
            f"{np.median(error):+.1%}",
            f"{np.median(better):.1%}",
            f"{np.median(np.abs(self.odd / self.even - 1.0)):.1%}",
            f"{spearmanr(self.odd, self.even).statistic:.3f}",
            *(f"{us / 1e3:.1f}" for us in times),
            f"{self.best_us / self.one_core_us:.3f}",
        ]


def placements(problem: PlacementProblem, count: int, seed: int) -> list[PlacementResult]:
    """By rules and by search, then these with groups moved by chance, until there are enough; each once."""
    random, groups = np.random.default_rng(seed), group_ops(problem)
    made = [load_placer("single")(problem), *(load_placer(name)(problem, seed=seed) for name in RULES)]
    made.append(load_placer("placeto")(problem, simulations=1000, seed=seed))
    made.append(load_placer("multilevel")(problem, simulations=300, seed=seed))
    if problem.graph.num_micro_batches > 1:
        made.append(load_placer("pipeline")(problem, seed=seed))
    kept = list({result.placement.tobytes(): result for result in made}.values())
    starts = [result.placement[groups.first_op] for result in kept]
    seen, tries = {result.placement.tobytes() for result in kept}, 0
    while len(kept) < count and tries < 20 * count:
        tries += 1
        start = starts[random.integers(len(starts))]
        moved = random.random(len(start)) < MOVED[random.integers(len(MOVED))]
        device = np.where(moved, random.integers(problem.num_devices, size=len(start)), start)
        schedule = simulate(problem, expand(groups, device))
        if schedule.placement.tobytes() not in seen:
            seen.add(schedule.placement.tobytes())
            kept.append(PlacementResult.of(schedule))
    return kept[:count]


def measure(step: RealStep, devices: Sequence[LocalDevice], config: Fidelity) -> Measurement:
    """Simulate and run a model's placements."""
    made = profile([step], devices, config.profile_seconds)
    problem = PlacementProblem(step.capture.graph, made.cluster, made.costs)
    found = placements(problem, config.placements, config.seed)
    runs = [PlacedStep(step.capture, result.schedule(), devices) for result in found]
    times = np.array(in_turns([_runner(run.run, step.leaves) for run in runs], config.seconds))
    drift = np.median(times, axis=0)  # of each round, in which each placement had its turn
    level = times / drift
    measured = np.median(level, axis=1) * np.median(drift)
    halves = np.median(level[:, ::2], axis=1), np.median(level[:, 1::2], axis=1)
    fastest = found[int(measured[1:].argmin()) + 1]
    other = PlacementProblem(problem.graph, problem.cluster, corrected(made.costs, step, fastest, devices))
    again = np.array([_same_order(other, result) for result in found])
    return Measurement(
        step.name,
        np.array([result.makespan_us for result in found]),
        again,
        measured,
        *halves,
        float(measured[0]),
        float(measured.min()),
        _eager(step),
    )


def _same_order(problem: PlacementProblem, result: PlacementResult) -> float:
    """Makespan of a placement in the order in which it was run."""
    schedule = result.schedule()
    order = schedule.order[schedule.order < problem.num_ops]
    return float(simulate(problem, result.placement, order=order).makespan_us)


def _runner(function: Callable[[Sequence[object]], object], leaves: Sequence[object]) -> Callable[[], object]:
    return lambda: function(leaves)


def _eager(step: RealStep) -> tuple[float, float]:
    """Median microseconds with one and two threads inside the ops."""
    assert step.eager is not None
    before, medians = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        times = []
        for _ in range(8):
            start = time.perf_counter()
            step.eager()
            times.append(time.perf_counter() - start)
        medians.append(float(np.median(times[2:])) * 1e6)
    torch.set_num_threads(before)
    return medians[0], medians[1]


def picture(found: Sequence[Measurement]) -> Figure:
    """Simulated against measured milliseconds."""
    points = {one.name: (one.measured_us / 1e3, one.simulated_us / 1e3) for one in found}
    return scatter_figure(points, "measured step, ms", "Simulated and measured steps; a dot is a placement")


def main(config: Fidelity) -> None:
    """Print the table, draw the picture."""
    devices = open_devices(["cpu:0", "cpu:1"])
    known = all_steps()
    steps = {name: known[name](name=name) for name in known if not config.models or name in config.models}
    found = list(
        measure_cells(steps, lambda name: measure(steps[name], devices, config), "running placements").values()
    )
    error = np.concatenate([one.simulated_us / one.measured_us - 1.0 for one in found])
    orders = [spearmanr(one.simulated_us, one.measured_us).statistic for one in found]
    summary = (
        f"All {len(error)} placements: median error {np.median(np.abs(error)):.1%}, Spearman of a model"
        f" {np.mean(orders):.3f} in the mean, {min(orders):.3f} at least."
    )
    table = markdown([list(HEAD), *(one.row() for one in found)])
    publish(config.out, "fidelity", [table, summary], picture(found))


if __name__ == "__main__":
    command(main, Fidelity, "fidelity", __doc__, times="Times are measured.")
