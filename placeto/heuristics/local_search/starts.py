"""Where searches begin: the best placement of all that place by a rule.

Legend: N ops, G groups, D devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from placeto.heuristics.baechi import try_m_sct, try_m_topo
from placeto.heuristics.common import Rule
from placeto.heuristics.list_scheduling import try_etf, try_heft
from placeto.heuristics.local_search.part_of_cluster import on_best_part, start_on_parts
from placeto.heuristics.naive import try_fastest, try_roundrobin, try_single
from placeto.heuristics.partition import try_expert, try_metis
from placeto.heuristics.plans import choose_order, order_chosen_again, orders_to_try, try_plans
from placeto.heuristics.repair import repair
from placeto.problem.grouping import Groups, cut_groups
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.observer import at_work

CHEAP: tuple[Rule, ...] = (try_metis, try_etf, try_heft, try_expert, try_single)
"""What training begins from, the one that is best most often first."""
LP_OPS = 2000
"""Ops of a graph for which m-SCT's linear programs count as cheap: 0.2 to 0.6 s."""
_LP_SHARE = 0.05  # of the time that is left, at most, for each of these
CONSTRUCTIVE: tuple[Rule, ...] = (
    *CHEAP,
    partial(try_m_sct, most_ops=LP_OPS, share=_LP_SHARE),
    try_m_topo,
    try_fastest,
    try_roundrobin,
)
"""What `best_cheap` tries: all placers that build one placement. m-ETF's are among those of ETF."""
ON_PARTS: tuple[Rule, ...] = (try_etf, try_metis, try_heft, try_expert)
"""What it tries on parts of the cluster."""
DEFAULT_SIMULATIONS = 1000
Method = Callable[[Evaluator, np.ndarray, np.random.Generator], None]
"""Spends what is left of a budget on a search from a placement (G,) of groups."""


def best_cheap(evaluator: Evaluator, seed: int = 0) -> tuple[np.ndarray, float]:
    """Run the constructive placers within the budget: the best placement (G,) of groups, and its penalised makespan.

    Steps in micro-batches begin with plans, by far the best start there, and go on under the order that was best for
    them. Some of the placers are tried on parts of the cluster, too: see `start_on_parts`. What doesn't fit into memory
    is repaired, as these placers do. m-SCT does without linear programs above `LP_OPS` ops. If the best placement is
    one op by op, it is rounded to groups (each goes where most of its work is) and counts too.
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


def begin(evaluator: Evaluator, seed: int = 0) -> tuple[np.ndarray, float]:
    """As `best_cheap`; the evaluator's groups are then cut where the best placement does, if it is one op by op."""
    best_cheap(evaluator, seed)
    placement = evaluator.best
    if placement is not None and evaluator.best_score < evaluator.best_groups[1] and not evaluator.exhausted:
        evaluator.regroup(cut_groups(evaluator.problem, evaluator.groups, placement))
        if not np.array_equal(evaluator.best_groups[0], placement[evaluator.groups.first_op]):
            evaluator.score(placement[evaluator.groups.first_op])  # by the problem's dispatch
    return evaluator.best_groups


def round_best(evaluator: Evaluator) -> None:
    """Where the best placement doesn't keep groups together, score what is next to it and does."""
    if evaluator.best is not None and evaluator.best_score < evaluator.best_groups[1]:
        evaluator.score(round_to_groups(evaluator.problem, evaluator.groups, evaluator.best))


def round_to_groups(problem: PlacementProblem, groups: Groups, placement: np.ndarray) -> np.ndarray:
    """(G,) the device on which a placement (N,) has most of each group's work."""
    votes = np.zeros((groups.num_groups, problem.num_devices))
    np.add.at(votes, (groups.group, placement), problem.op_time.mean(axis=1) + 1e-9)
    return votes.argmax(axis=1)


def follow(method: Method, evaluator: Evaluator, seed: int) -> None:
    """Follow a method from the best cheap placement, as far as the evaluator's budget goes."""
    _, score = begin(evaluator, seed)
    if evaluator.problem.num_devices > 1 and score < math.inf and not evaluator.exhausted:
        at_work("search")
        random = np.random.default_rng(seed)
        with order_chosen_again(evaluator):
            with on_best_part(evaluator) as inner:
                if inner is not None:
                    round_best(inner)
                    method(inner, inner.best_groups[0], random)
            if inner is not None:
                round_best(evaluator)
            if not evaluator.exhausted:
                method(evaluator, evaluator.best_groups[0], random)
