"""Placers that don't learn.

Input: a problem and a budget. Output: a `PlacementResult`. The table `HEURISTICS` has all of them by name: one device,
simple rules, partitioning, list scheduling, the placers of Baechi, searches (`local_search`) and the optimum (`exact`).
Each scores placements with an `Evaluator`, which keeps the best. Searches begin with the best placement of the
constructive placers.

A placer is a rule, with one line in `_RULES`, or a method that searches, with one line in `_METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from placeto.heuristics.baechi import try_m_etf, try_m_sct, try_m_topo
from placeto.heuristics.exact.exact_placer import try_exact
from placeto.heuristics.list_scheduling import try_etf, try_heft
from placeto.heuristics.local_search.annealing import annealing
from placeto.heuristics.local_search.descents import climb, iterate
from placeto.heuristics.local_search.multilevel import v_cycles
from placeto.heuristics.local_search.starts import DEFAULT_SIMULATIONS, Method, follow
from placeto.heuristics.naive import try_fastest, try_random, try_roundrobin, try_single
from placeto.heuristics.partition import try_expert, try_metis
from placeto.heuristics.pipelines.plans import try_all_plans, try_even_plans
from placeto.heuristics.repair import repair as make_fit
from placeto.heuristics.rules import Rule
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult
from placeto.simulator.warming import warm_up

__all__ = ["HEURISTICS", "SEARCHES"]

_RULES: dict[str, Rule] = {
    "single": try_single,
    "fastest": try_fastest,
    "random": try_random,
    "roundrobin": try_roundrobin,
    "expert": try_expert,
    "pipeline": try_all_plans,
    "torch-pipeline": try_even_plans,
    "metis": try_metis,
    "heft": try_heft,
    "etf": try_etf,
    "m-topo": try_m_topo,
    "m-etf": try_m_etf,
    "m-sct": try_m_sct,
}
_METHODS: dict[str, Method] = {
    "hillclimb": climb,
    "ils": iterate,
    "anneal": annealing,
    "multilevel": v_cycles,
}
SEARCHES = tuple(_METHODS)
"""Names of the placers that search until a budget is spent."""


def _placer(name: str, rule: Rule, sentence: str | None, repairs: bool) -> Callable[..., PlacementResult]:
    """Make a placer of a rule. With a limit in seconds, its kernels are compiled before its time begins.

    A search (see `SEARCHES`) that is called without a budget takes `DEFAULT_SIMULATIONS` simulations.

    Args:
        name: of the placer.
        rule: scores placements.
        sentence: the docstring of the placer.
        repairs: whether the rule's best placement is repaired if it doesn't fit into memory.
    """

    def place(
        problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
    ) -> PlacementResult:
        if seconds is not None:
            warm_up(place, problem, simulations, seconds)
        elif simulations is None and name in SEARCHES:
            simulations = DEFAULT_SIMULATIONS
        evaluator = Evaluator(problem, None, simulations, seconds)
        rule(evaluator, seed)
        if repairs and not evaluator.best_fits:
            make_fit(evaluator)
        return replace(evaluator.result(), placer=name)

    place.__doc__ = sentence
    return place


HEURISTICS = {
    **{name: _placer(name, rule, rule.__doc__, name not in ("single", "pipeline")) for name, rule in _RULES.items()},
    **{name: _placer(name, partial(follow, method), method.__doc__, False) for name, method in _METHODS.items()},
    "exact": _placer("exact", try_exact, try_exact.__doc__, False),
}
"""Name -> placer. ``placeto list placers`` prints the first line of the placer's docstring."""
