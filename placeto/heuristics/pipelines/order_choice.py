"""The order of a step in micro-batches: the best static one, or one that is made for a placement.

Legend: N ops, G groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from placeto.heuristics.pipelines.bounded_orders import bounded_orders
from placeto.problem.cluster import STATIC_ORDERS
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator

_ON_ORDERS = 0.02  # share of the budget that is left after the starts, for choosing the order


def try_bounded_orders(evaluator: Evaluator, placement: np.ndarray) -> None:
    """Simulate a placement (N,) in the orders that `placeto.heuristics.pipelines.bounded_orders` makes for it.

    If it fits in none of them, those that need less memory are tried until it fits: they defer no gradients of weights,
    or have falling bounds.
    """
    fits = False
    for defer, falling in ((True, False), (False, False), (True, True), (False, True)):
        orders = bounded_orders(evaluator.problem, placement, defer, falling)
        less = falling or not defer
        while not (evaluator.exhausted or (fits and less)) and (order := next(orders, None)) is not None:
            evaluator.score_ops(placement, order)
            fits |= evaluator.last_fits


def orders_to_try(problem: PlacementProblem) -> tuple[str, ...]:
    """The orders that a search chooses among; none with one micro-batch, one device, or no static order as dispatch."""
    several = problem.graph.num_micro_batches > 1
    return STATIC_ORDERS if several and problem.dispatch in STATIC_ORDERS and problem.num_devices > 1 else ()


def choose_order(evaluator: Evaluator, orders: tuple[str, ...]) -> None:
    """Simulate the best placement under the other static orders; the best order becomes the evaluator's dispatch."""
    best = evaluator.best
    if best is None:
        return
    dispatch = evaluator.best_dispatch
    for order in orders:
        if order != dispatch and not evaluator.exhausted:
            evaluator.reorder(order)
            evaluator.score_ops(best)
    evaluator.reorder(evaluator.best_dispatch)


@contextmanager
def order_chosen_again(evaluator: Evaluator) -> Iterator[None]:
    """Keep a small share of the budget (`_ON_ORDERS`) back within this context, and choose the order at its end.

    The best placement is then simulated under each static order, and in the orders that are made for it (see
    `bounded_orders`). So is the best placement that keeps groups together, but only in orders that are made for it: the
    search found it under one static order, and it may gain more by others.
    """
    if not (orders := orders_to_try(evaluator.problem)):
        yield
        return
    with evaluator.limited_to(1.0 - _ON_ORDERS):
        yield
    searched = evaluator.best_groups[0][evaluator.groups.group]
    choose_order(evaluator, orders)
    if evaluator.best is not None and not np.array_equal(evaluator.best, searched):
        try_bounded_orders(evaluator, evaluator.best)
    try_bounded_orders(evaluator, searched)
