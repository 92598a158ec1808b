"""The picture of the README: three schedules of one graph on one time axis.

python -m experiments.schedules [--graph nmt:test:0] [--cluster 4xv100]

On the best single device, by the best of the heuristics, and by Placeto with its default budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.command import command
from experiments.harness import problem_of
from placeto.formats.gantt import gantt_panels, save_figure
from placeto.placers import load_placer
from placeto.problem.units import format_us

HEURISTICS = ("metis", "heft", "etf", "expert", "m-topo", "m-etf", "m-sct")


@dataclass(frozen=True)
class Schedules:
    """Draw one graph's schedules below each other."""

    graph: str = "nmt:test:0"
    """file or family:split:index"""
    cluster: str = "4xv100"
    """preset or file"""
    picture: Path = Path("docs/schedules.png")
    """where the picture goes"""


def main(config: Schedules) -> None:
    """Place, draw, and print the makespans."""
    problem = problem_of(config.graph, config.cluster)
    results = {name: load_placer(name)(problem) for name in (*HEURISTICS, "single")}
    best = min(HEURISTICS, key=lambda name: results[name].makespan_us)
    results["placeto"] = load_placer("placeto")(problem)
    titles = {"single": "one device", best: f"best heuristic ({best})", "placeto": "Placeto, 1,000 simulations"}
    found = {title: results[name].schedule() for name, title in titles.items()}
    schedules = {f"{title}: {format_us(schedule.makespan_us)}": schedule for title, schedule in found.items()}
    save_figure(gantt_panels(schedules, f"One training step of {config.graph} on {config.cluster}"), config.picture)
    print("\n".join(schedules))


if __name__ == "__main__":
    command(main, Schedules, "schedules", __doc__)
