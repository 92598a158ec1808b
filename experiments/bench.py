"""How fast the placers are on the graphs of the families that ship, at 1000 simulations (a part of ``make bench``).

python -m experiments.bench
"""

from __future__ import annotations

from dataclasses import dataclass

from experiments.command import command
from experiments.harness import problem_of
from experiments.tables import markdown
from graphs import SHIPPED
from placeto.placers import load_placer, load_split


@dataclass(frozen=True)
class BenchConfig:
    """Measure speeds on the first test graphs of each family that ships."""

    cluster: str = "4xv100"
    """to place on"""
    graphs: int = 3
    """how many of each family"""
    placers: str = "heft,etf,hillclimb,anneal"
    """comma-separated"""


def main(config: BenchConfig) -> None:
    """Print a markdown table."""
    names = [name for family in SHIPPED for name in load_split(family, "test", config.graphs)]
    lines = [["placer", "graph", "simulations", "seconds"]]
    for placer in config.placers.split(","):
        load_placer(placer)(problem_of(names[0], config.cluster), simulations=10)  # compile
        for name in names:
            result = load_placer(placer)(problem_of(name, config.cluster), simulations=1000)
            lines.append([placer, name, f"{result.simulations}", f"{result.seconds:.3f}"])
    print(markdown(lines, 2))


if __name__ == "__main__":
    command(main, BenchConfig, "bench", __doc__)
