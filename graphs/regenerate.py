"""Capture the graphs of a family again and write its file in ``graphs/data``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context

import torch

from graphs import SHIPPED, store
from placeto.problem.graph import ComputationGraph


def _capture(job: tuple[str, str, int]) -> ComputationGraph:
    torch.set_num_threads(1)
    family, split, index = job
    return SHIPPED[family].capture(split, index)


def regenerate(family: str, workers: int) -> None:
    """Capture all graphs of a family, in that many processes, and write its file."""
    start = time.perf_counter()
    jobs = [(family, split, index) for split, size in SHIPPED[family].splits.items() for index in range(size)]
    with ExitStack() as stack:
        results: Iterable[ComputationGraph] = map(_capture, jobs)
        if workers > 1:
            # forking a process in which torch has started threads can hang
            pool = stack.enter_context(ProcessPoolExecutor(workers, mp_context=get_context("spawn")))
            results = pool.map(_capture, jobs)
        graphs = []
        for graph in results:
            graphs.append(graph)
            print(f"{graph.name}: {graph.num_ops} ops, {graph.num_edges} edges", file=sys.stderr)
    path = (SHIPPED[family].data or store.DATA) / f"{family}.zip"
    path.parent.mkdir(exist_ok=True)
    store.save(graphs, path)
    seconds = time.perf_counter() - start
    print(f"{path.name}: {len(graphs)} graphs, {path.stat().st_size / 1e6:.2f} MB, {seconds:.0f} s")
