"""Warming up placers: their kernels are compiled, or loaded, before the clock starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from placeto.problem.cluster import Cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.label_values import NO_MICRO_BATCH
from placeto.problem.problem import PlacementProblem
from placeto.simulator.observer import observing
from placeto.simulator.schedule import simulate, simulate_batch

_SIMULATIONS = 256  # enough for batches that are simulated with several threads
_READY: WeakKeyDictionary[Callable[..., Any], dict[object, float]] = WeakKeyDictionary()
"""Placer -> sort of problem for which it is warm -> simulations of the warm-up; inf = no limit."""


def warm_up(
    placer: Callable[..., Any], problem: PlacementProblem, simulations: int | None, seconds: float | None
) -> None:
    """Compile a placer's kernels on a tiny graph, so that compiling doesn't take seconds of the placer's budget.

    The tiny graph is in micro-batches if the problem's is. `simulations` and `seconds` are the placer's budget. Seconds
    don't limit the warm-up, which would stop half-way. Kernels that a placer calls only if memory is short, or with
    large batches, are called in addition. A placer that is warm already isn't called again.
    """
    if seconds is not None:
        simulations = _SIMULATIONS if simulations is None else simulations
    wanted = None if simulations is None else min(simulations, _SIMULATIONS)
    cluster, several = problem.cluster, bool((problem.graph.micro_batches != NO_MICRO_BATCH).any())
    sort = (
        several,
        cluster.num_devices > 1,
        cluster.dispatch,
        cluster.transfers,
        cluster.link,
        bool(cluster.shared_links),
    )
    ready = _READY.setdefault(placer, {})
    if (math.inf if wanted is None else wanted) <= ready.get(sort, -1):
        return
    with observing(None):
        tiny = _tiny(cluster, several)
        placer(tiny, simulations=wanted, seed=0)
        on_one = np.zeros((1, tiny.num_ops), np.int64)
        _ = simulate(tiny, on_one[0]).peak_memory
        simulate_batch(tiny, on_one)
    ready[sort] = math.inf if wanted is None else wanted


def _tiny(cluster: Cluster, several: bool) -> PlacementProblem:
    fields = {"module": "m", "flops": 1e6, "outputs": [4]}  # with modules, since kernels group such ops
    head = {"name": "m/a", **fields}
    tail = [{"name": f"m/{name}", "inputs": [["m/a", 0]], **fields} for name in "bcde"]
    if several:
        facts = {"micro_batch": 0, "pass": "forward"}, {"micro_batch": 0, "pass": "backward"}
        tail = [op | facts[op["name"] == "m/c"] | {"micro_batch": int(op["name"] == "m/d")} for op in tail]
    return PlacementProblem(ComputationGraph.from_ops("tiny", [head, *tail]), cluster)
