"""``python -m graphs regenerate``: capture the graphs of the families again and write ``graphs/data``."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from graphs import FAMILIES, store
from placeto.graph import ComputationGraph


def _capture(job: tuple[str, str, int]) -> ComputationGraph:
    torch.set_num_threads(1)
    family, split, index = job
    return FAMILIES[family].capture(split, index)


def regenerate(family: str, workers: int) -> None:
    """Capture all graphs of a family and write its file."""
    start = time.perf_counter()
    jobs = [(family, split, index) for split, size in FAMILIES[family].splits.items() for index in range(size)]
    # forking a process in which torch has started threads can hang
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        graphs = []
        for graph in pool.map(_capture, jobs):
            graphs.append(graph)
            print(f"{graph.name}: {graph.num_ops} ops, {graph.num_edges} edges", file=sys.stderr)
    path = store.DATA / f"{family}.zip"
    path.parent.mkdir(exist_ok=True)
    store.save(graphs, path)
    seconds = time.perf_counter() - start
    print(f"{path.name}: {len(graphs)} graphs, {path.stat().st_size / 1e6:.2f} MB, {seconds:.0f} s")


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(prog="python -m graphs", description="The graph families that ship with Placeto.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("regenerate", help="capture the graphs again and write graphs/data")
    command.add_argument("--family", choices=list(FAMILIES), action="append", help="all by default")
    command.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    options = parser.parse_args(arguments)
    for family in options.family or FAMILIES:
        regenerate(family, options.workers)


if __name__ == "__main__":
    main()
