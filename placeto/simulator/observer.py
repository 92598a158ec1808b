"""Observing a placer: the best placement so far, what the placer does, and an early end if nothing is gained.

with observing(Observer(report=print, patience=0.3)):
    result = placer(problem, seconds=10)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple


class Status(NamedTuple):
    """What can be seen of a running placer."""

    stage: str  # "heuristics", "policy", "search", "search of parts"
    share: float  # of the budget that is spent
    best_us: float  # penalised makespan
    heuristic_us: float  # the same when the heuristics were done; inf before


@dataclass(eq=False)
class Observer:
    """Who is told, and for how long nothing may be gained."""

    report: Callable[[Status], None] | None = None
    """called whenever something was simulated, many times a second"""
    patience: float | None = None
    """share of the budget after which the placer ends if nothing was gained in it; None = never"""
    stage: str = "heuristics"
    best: tuple[bool, float] = (True, float("inf"))
    heuristic_us: float = float("inf")
    gained_at: float = 0.0

    def look(self, share: float, best: tuple[bool, float]) -> None:
        """Take note of the best that a placer has now: whether it exceeds memory, and its penalised makespan.

        That may be the best of one heuristic alone; the observer keeps the best of all.
        """
        if best < self.best:
            self.best, self.gained_at = best, share
            if self.stage == "heuristics":
                self.heuristic_us = best[1]
        if self.report is not None:
            known = self.heuristic_us if self.stage != "heuristics" else float("inf")
            self.report(Status(self.stage, share, self.best[1], known))

    def has_enough(self, share: float) -> bool:
        """Whether the placer is to end."""
        return self.patience is not None and share - self.gained_at >= self.patience


_OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observing(observer: Observer | None) -> Iterator[None]:
    """Within it the observer sees all placers of this thread; None sees nothing: what is placed isn't the user's."""
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


def current() -> Observer | None:
    """Who is told now."""
    return _OBSERVER.get()


def at_work(stage: str) -> None:
    """Say what the placer does from now on."""
    observer = _OBSERVER.get()
    if observer is not None:
        observer.stage = stage
