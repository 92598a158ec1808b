"""How much do we lose by ranking plans by their chunks, in place of simulating the ops of all of them?

python -m experiments.plan_ranks [--models NAME ...] [--clusters NAME ...] [--micro-batches 4 8 16] [--workers 1]

The models and clusters are those of `models_in_micro_batches`. A row has the best plan that `placeto` finds before its
search, and the best of all plans: each plan is simulated in the same two orders, and the better one counts. A plan that
exceeds the memory counts with the penalised makespan that all placers minimise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from experiments.command import command
from experiments.harness import measure_cells
from experiments.models_in_micro_batches import CLUSTERS, MODELS, captured
from experiments.tables import machine, markdown, publish
from placeto.heuristics.pipelines.plans import FIRST_ORDERS, all_plans, least_us, parts_to_plan, score_plans
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator


@dataclass(frozen=True)
class PlanRanks:
    """Choose plans by their chunks, and by the ops of all."""

    out: Path = Path("runs/plan_ranks")
    """folder for a file of each row, and for the table"""
    models: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = tuple(MODELS)
    """which"""
    clusters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = CLUSTERS
    """presets or files"""
    micro_batches: tuple[int, ...] = (4, 8, 16)
    """numbers of micro-batches"""
    workers: int | None = 1
    """processes; None = all cores"""


@dataclass(frozen=True)
class Row:
    """A model on a cluster, in some micro-batches."""

    model: str
    cluster: str
    micro_batches: int

    def __str__(self) -> str:
        return f"{self.model} on {self.cluster}, {self.micro_batches} micro-batches"


def compared(row: Row) -> dict[str, float]:
    """Microseconds of the best plan by ranks and of all, and how many plans are simulated of how many."""
    problem = PlacementProblem(captured(row.model, row.micro_batches), load_cluster(row.cluster))
    scored = score_plans(Evaluator(problem))
    best_us, *_ = scored[0]
    plans = {plan.joined(): plan for part in parts_to_plan(problem) for plan in all_plans(problem, part)}
    evaluator, all_us = Evaluator(problem), best_us
    for order in FIRST_ORDERS:
        evaluator.reorder(order)
        for plan in plans.values():
            if least_us(problem, sorted(plan.used)) < best_us:  # else it is no better
                all_us = min(all_us, evaluator.score_ops(plan.placement(problem)))
    return {"ranked": best_us, "all": all_us, "simulated": len(scored), "plans": len(plans)}


def main(config: PlanRanks) -> None:
    """Compare what is missing, print the table and write it."""
    rows = [Row(*names) for names in product(config.models, config.clusters, config.micro_batches)]
    files = {row: config.out / f"{row.model}_{row.cluster}_{row.micro_batches}.json" for row in rows}
    found = measure_cells(rows, compared, workers=config.workers, file=files.__getitem__)
    longer = {row: 100.0 * (us["ranked"] / us["all"] - 1.0) for row, us in found.items()}
    worst = max(longer, key=longer.__getitem__)
    lines = [
        f"{len(rows)} rows; {machine()}. The best plan by ranks takes {np.mean([*longer.values()]):.2f} % longer than "
        f"the best of all in the mean, and {longer[worst]:.2f} % at most ({worst}). "
        f"{sum(each == 0.0 for each in longer.values())} rows have the same step.",
        markdown(table(found, longer), 3),
    ]
    publish(config.out, "plan_ranks", lines, None)


def table(found: Mapping[Row, Mapping[str, float]], longer: Mapping[Row, float]) -> Sequence[Sequence[str]]:
    """A line for each row."""
    lines = [["model", "cluster", "M", "longer, %", "plans simulated", "of"]]
    for row, numbers in found.items():
        counts = [f"{numbers[name]:.0f}" for name in ("simulated", "plans")]
        lines.append([row.model, row.cluster, str(row.micro_batches), f"{longer[row]:.2f}", *counts])
    return lines


if __name__ == "__main__":
    command(main, PlanRanks, "plan_ranks", __doc__)
