"""Are plans that are faster by simulation faster under torchrun?

python -m experiments.measured_plans [--steps 10] [--rounds 2]

Ops of two models, transfers between two processes, and what torch takes for chunks and sums are measured on this
machine (`placeto profile --processes`). Then plans on two ranks are simulated with these costs, as torch runs them,
exported, and run by `placeto run --plan`'s own runner: gloo, and a thread a rank. All plans run once in each round, so
that what else the machine does meets all. Where it does much else, the fastest step says more than the median.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from experiments import torch_model
from experiments.command import command
from experiments.tables import markdown
from experiments.torch_plans import best_order
from placeto.cli.profile import real_step_of
from placeto.cli.shared.graphs import capture_factory
from placeto.cli.shared.options import CaptureOptions, TraceOptions
from placeto.errors import PlacementError
from placeto.formats.exports import TorchPipeline, save_torch_pipeline, torch_pipeline
from placeto.heuristics.pipelines.plans import make_plan
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.layers import layers
from placeto.problem.step.plan import Stages
from placeto.runtime.local_devices import open_devices
from placeto.runtime.measuring.profiling import Profile, profile
from placeto.runtime.torchrun import torchrun

FACTORIES = {
    "transformer": f"{torch_model.__file__}:net(layers=6, width=384, batch=48)",
    "convolutions": f"{torch_model.__file__}:convolutions(blocks=6, batch=192)",
}
DEVICES = "cpu:0", "cpu:1"
SHAPES: dict[str, tuple[Stages, tuple[float, ...]]] = {
    "two replicas": (((0, 1),), ()),
    "two stages": (((0,), (1,)), (0.5,)),
    "two stages, the first with a quarter": (((0,), (1,)), (0.25,)),
    "two stages, the first with 0.7": (((0,), (1,)), (0.7,)),
    "two stages a rank": (((0,), (1,), (0,), (1,)), (0.25, 0.5, 0.75)),
    "and back": (((0,), (1,), (0,)), (0.25, 0.75)),
}
NOT_COUNTED = 2  # first steps


@dataclass(frozen=True)
class MeasuredPlans:
    """Profile, simulate, run."""

    steps: int = 10
    """of a run that count"""
    rounds: int = 2
    """in each of which all plans run"""
    seconds: float = 60.0
    """how long the ops are measured"""
    micro_batches: tuple[int, ...] = (4, 8)
    """numbers of them"""


def pipelines(factory: str, counts: tuple[int, ...], measured: Profile) -> dict[tuple[str, int], TorchPipeline]:
    """The plans of a model that torch can run, in their best orders, by shape and number of micro-batches."""
    found = {}
    for count in counts:
        graph = capture_factory(factory, CaptureOptions(micro_batches=count), "model")[0]
        problem = PlacementProblem(graph, measured.cluster, measured.costs)
        number = len(layers(problem, False).work_us)
        for shape, (devices, shares) in SHAPES.items():
            borders = tuple(round(number * share) for share in shares)
            try:
                found[shape, count] = torch_pipeline(best_order(problem, make_plan(problem, devices, borders)))
            except PlacementError as error:
                print(f"Left out: {error}\n")
    return found


def main(config: MeasuredPlans) -> None:
    """A table and the rank correlation for each model."""
    devices = open_devices(DEVICES)
    steps = [
        real_step_of(factory, TraceOptions(micro_batches=count))
        for factory in FACTORIES.values()
        for count in config.micro_batches
    ]
    measured = profile(steps, devices, config.seconds, processes=True)
    link = measured.cluster.latency_us[0, 1], measured.cluster.bandwidth[0, 1]
    print(f"A transfer between the processes takes {link[0]:.0f} us and 1 us for {link[1]:.0f} bytes.\n")
    for name, factory in FACTORIES.items():
        made = pipelines(factory, config.micro_batches, measured)
        times: dict[tuple[str, int], list[list[float]]] = {plan: [] for plan in made}
        for _ in range(config.rounds):
            for plan, of in made.items():
                with tempfile.TemporaryDirectory() as folder:
                    save_torch_pipeline(of, Path(folder), factory)
                    run = torchrun(Path(folder), devices[: of.num_ranks], NOT_COUNTED + config.steps)
                times[plan].append(run[NOT_COUNTED:])
        _table(name, made, times)


def _table(
    name: str, made: dict[tuple[str, int], TorchPipeline], times: dict[tuple[str, int], list[list[float]]]
) -> None:
    head = [name, "micro-batches", "simulated, ms", "median, ms", "fastest, ms", "fastest / simulated", "rounds, ms"]
    table, simulated, medians, least = [head], list[float](), list[float](), list[float]()
    rounds = np.array([[np.median(run) for run in runs] for runs in times.values()])  # (plans, rounds)
    for (shape, count), runs, row in zip(made, times.values(), rounds, strict=True):
        simulated.append(made[shape, count].step.makespan_us)
        medians.append(float(np.median(np.concatenate(runs))))
        least.append(min(min(run) for run in runs))
        numbers = [f"{us / 1e3:.1f}" for us in (simulated[-1], medians[-1], least[-1])]
        each = ", ".join(f"{us / 1e3:.1f}" for us in row)
        table.append([shape, str(count), *numbers, f"{least[-1] / simulated[-1]:.2f}", each])
    print(f"{markdown(table)}\n")
    by = " and ".join(
        f"{spearmanr(simulated, times_us).statistic:.3f} with the {what}"
        for what, times_us in (("median", medians), ("fastest step", least))
    )
    text = f"Rank correlation of simulated steps of {len(made)} plans: {by}"
    if rounds.shape[1] > 1:
        text += f"; of medians of the first round and the last: {spearmanr(rounds[:, 0], rounds[:, -1]).statistic:.3f}"
    picked = int(np.argmin(simulated))
    median, step = medians[picked] / min(medians), least[picked] / min(least)
    best = f"{median:.3f} of the least median, {step:.3f} of the fastest step"
    print(f"{text}. The plan that is fastest by simulation takes {best}.\n")


if __name__ == "__main__":
    command(main, MeasuredPlans, "measured_plans", __doc__, "Steps are measured on this machine.")
