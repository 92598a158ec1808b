"""Compares placers on a graph of your own: a graph that is not captured from PyTorch, but described op by op.

    python examples/compare_on_your_graph.py

The graph is a grid of blocks: each block needs the results of the block above it and of the block on its left, as in a
wavefront computation. Each placer gets the same number of simulations, and several seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from placeto import ComputationGraph, load_cluster, save_graph
from placeto.evaluation.comparison import PlacerSpec, evaluate
from placeto.evaluation.figures import curve_figure
from placeto.evaluation.summary import markdown_table, mean_curves, summarize
from placeto.formats.gantt import save_figure

BYTES = 1_000_000  # of each result


def grid(rows: int, columns: int) -> ComputationGraph:
    """A block for each cell of a grid; ops are dictionaries, as in a graph file."""
    ops = []
    for row in range(rows):
        for column in range(columns):
            before = [(row - 1, column)] * (row > 0) + [(row, column - 1)] * (column > 0)
            ops.append(
                {
                    "name": f"block-{row}-{column}",
                    "type": "block",
                    "inputs": [[f"block-{above}-{left}", 0] for above, left in before],
                    "outputs": [BYTES],
                    "time_us": {"*": 100.0 + 50.0 * ((7 * row + 3 * column) % 11)},
                }
            )
    return ComputationGraph.from_ops("grid", ops, mode="inference")


def main(rows: int, columns: int, simulations: int, seeds: int, out: Path) -> str:
    """Compare; writes the graph, the rows and a picture, and returns the table."""
    out.mkdir(parents=True, exist_ok=True)
    graph = grid(rows, columns)
    save_graph(graph, out / "grid.json")
    names = "single", "metis", "heft", "etf", "anneal", "multilevel", "placeto"
    specs = [PlacerSpec(name, name, simulations) for name in names]
    found = evaluate(
        {"grid": graph},
        load_cluster("4xv100"),
        specs,
        range(seeds),
        out=out / "rows.json",
        processes=1,
        history=True,
    )
    figure = curve_figure(mean_curves(found, "simulations"), mean_curves(found, "seconds"), "A grid of blocks")
    save_figure(figure, out / "curves.png")
    table = markdown_table(summarize(found))
    print(table)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=12)
    parser.add_argument("--columns", type=int, default=12)
    parser.add_argument("--simulations", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/grid"))
    settings = parser.parse_args()
    main(settings.rows, settings.columns, settings.simulations, settings.seeds, settings.out)
