"""Where searches begin: the best placement of the constructive placers.

Legend: N ops, G groups, D devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from placeto.heuristics.baechi import try_m_sct, try_m_topo
from placeto.heuristics.list_scheduling import try_etf, try_heft
from placeto.heuristics.local_search.part_of_cluster import start_on_parts
from placeto.heuristics.naive import try_fastest, try_roundrobin, try_single
from placeto.heuristics.partition import try_expert, try_metis
from placeto.heuristics.pipelines.order_choice import choose_order, order_chosen_again, orders_to_try
from placeto.heuristics.pipelines.plans import try_plans
from placeto.heuristics.repair import repair
from placeto.heuristics.rules import Rule
from placeto.problem.grouping import Groups, cut_groups
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.observer import at_work

CHEAP: tuple[Rule, ...] = (try_metis, try_etf, try_heft, try_expert, try_single)
"""The placers whose best placement training begins from; the one that is best most often comes first."""
_LP_OPS = 2000  # of the largest graph for which m-SCT's linear programs are solved here: they take 0.2 to 0.6 s
_LP_SHARE = 0.05  # of the time that is left: limit for each linear program
CONSTRUCTIVE: tuple[Rule, ...] = (
    *CHEAP,
    partial(try_m_sct, most_ops=_LP_OPS, share=_LP_SHARE),
    try_m_topo,
    try_fastest,
    try_roundrobin,
)
"""The constructive placers, which `best_cheap` runs. m-ETF is left out, since ETF tries its placements as well."""
ON_PARTS: tuple[Rule, ...] = (try_etf, try_metis, try_heft, try_expert)
"""The constructive placers that `best_cheap` also runs on parts of the cluster."""
DEFAULT_SIMULATIONS = 1000
Method = Callable[[Evaluator, np.random.Generator], None]
"""A search: from the evaluator's best placement of groups, it spends the rest of the evaluator's budget."""


def best_cheap(evaluator: Evaluator, seed: int = 0) -> tuple[np.ndarray, float]:
    """Run the constructive placers within the budget.

    For a step in micro-batches, plans are tried first: they are by far the best start there. The placers then run under
    the static order that was best for the plans, and if one of them is better, the other orders are tried for its
    placement. Some placers also run on parts of the cluster: see `start_on_parts`.
    If the best placement of a placer doesn't fit into memory, it is repaired. If the best placement of all divides
    groups, it is rounded to groups (see `round_to_groups`), and the result is scored as well.

    Returns:
        The best placement (G,) that keeps groups together, and its penalised makespan in microseconds; all 0 and inf if
        there is none.
    """
    at_work("heuristics")
    began = evaluator.seconds
    if orders := orders_to_try(evaluator.problem):
        try_plans(evaluator, seed)
    planned = evaluator.best_score
    _follow_rules(evaluator, CONSTRUCTIVE, seed)
    if evaluator.best_score < planned:
        choose_order(evaluator, orders)
    start_on_parts(evaluator, lambda inner: _follow_rules(inner, ON_PARTS, seed), evaluator.seconds - began)
    round_best(evaluator)
    return evaluator.best_groups


def _follow_rules(evaluator: Evaluator, rules: Sequence[Rule], seed: int) -> None:
    for rule in rules:
        if not evaluator.exhausted:
            with evaluator.anew():
                rule(evaluator, seed)
                if not evaluator.best_fits:
                    repair(evaluator)


def begin(evaluator: Evaluator, seed: int = 0) -> None:
    """Run `best_cheap`, and then cut the evaluator's groups where the best placement divides them."""
    best_cheap(evaluator, seed)
    placement = evaluator.best
    if placement is not None and evaluator.best_score < evaluator.best_groups[1] and not evaluator.exhausted:
        evaluator.regroup(cut_groups(evaluator.problem, evaluator.groups, placement))
        if not np.array_equal(evaluator.best_groups[0], placement[evaluator.groups.first_op]):
            evaluator.score(placement[evaluator.groups.first_op])  # by the dispatch, not in an order of its own


def round_best(evaluator: Evaluator) -> None:
    """If the best placement divides groups, round it to groups and score the result."""
    if evaluator.best is not None and evaluator.best_score < evaluator.best_groups[1]:
        evaluator.score(round_to_groups(evaluator.problem, evaluator.groups, evaluator.best))


def round_to_groups(problem: PlacementProblem, groups: Groups, placement: np.ndarray) -> np.ndarray:
    """(G,) the device on which a placement (N,) has most of each group's work."""
    votes = np.zeros((groups.num_groups, problem.num_devices))
    np.add.at(votes, (groups.group, placement), problem.op_time.mean(axis=1) + 1e-9)
    return votes.argmax(axis=1)


def follow(method: Method, evaluator: Evaluator, seed: int, start: Rule = begin) -> None:
    """Run a search from the best placement of the constructive placers, until the evaluator's budget is spent.

    At the end the order is chosen once more (see `order_chosen_again`).

    Args:
        method: the search.
        evaluator: scores, and keeps the best.
        seed: of the search.
        start: scores the placements from the best of which the search begins.
    """
    start(evaluator, seed)
    if can_be_improved(evaluator):
        at_work("search")
        with order_chosen_again(evaluator):
            method(evaluator, np.random.default_rng(seed))


def can_be_improved(evaluator: Evaluator) -> bool:
    """Whether a search can go on: there are several devices, a placement of groups that takes time, and budget left."""
    return evaluator.problem.num_devices > 1 and 0 < evaluator.best_groups[1] < math.inf and not evaluator.exhausted
