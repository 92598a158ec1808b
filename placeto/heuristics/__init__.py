"""Placers that don't learn.

In come a problem and a budget; out goes a `PlacementResult`. `HEURISTICS` names them all: one device, rules of thumb,
partitioning, list scheduling, Baechi's, searches (`local_search`) and the optimum (`exact`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from placeto.heuristics.baechi import m_etf, m_sct, m_topo
from placeto.heuristics.exact.placer import exact
from placeto.heuristics.list_scheduling import etf, heft
from placeto.heuristics.local_search.annealing import anneal, multilevel
from placeto.heuristics.local_search.descents import hillclimb, ils
from placeto.heuristics.naive import fastest, random, roundrobin, single
from placeto.heuristics.partition import expert, metis
from placeto.heuristics.plans import pipeline, torch_pipeline
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import PlacementResult
from placeto.simulator.warming import warm_up

__all__ = ["HEURISTICS", "SEARCHES"]

_PLACERS: dict[str, Callable[..., PlacementResult]] = {
    "single": single,
    "fastest": fastest,
    "random": random,
    "roundrobin": roundrobin,
    "expert": expert,
    "pipeline": pipeline,
    "torch-pipeline": torch_pipeline,
    "metis": metis,
    "heft": heft,
    "etf": etf,
    "m-topo": m_topo,
    "m-etf": m_etf,
    "m-sct": m_sct,
    "hillclimb": hillclimb,
    "ils": ils,
    "anneal": anneal,
    "multilevel": multilevel,
    "exact": exact,
}


def _named(name: str, place: Callable[..., PlacementResult]) -> Callable[..., PlacementResult]:
    """The placer, whose results say its name, and whose seconds begin once it is ready."""

    @wraps(place)
    def named(problem: PlacementProblem, **budget: Any) -> PlacementResult:
        if (seconds := budget.get("seconds")) is not None:
            warm_up(named, problem, budget.get("simulations"), seconds)
        return replace(place(problem, **budget), placer=name)

    return named


HEURISTICS = {name: _named(name, place) for name, place in _PLACERS.items()}
"""Name -> placer; the first line of its docstring is what ``placeto list placers`` prints."""
SEARCHES = ("hillclimb", "ils", "anneal", "multilevel")
"""Those that search until a budget is spent."""
