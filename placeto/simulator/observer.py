"""Observing a running placer: its stage and its best placement, and an early end if it finds nothing better.

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
    """The state of a running placer."""

    stage: str  # "heuristics", "policy", "search", "search of parts"
    share: float  # share of the budget that is spent
    best_us: float  # penalised makespan of the best placement so far
    heuristic_us: float  # penalised makespan of the best placement of the heuristics; inf until they are done


@dataclass(eq=False)
class Observer:
    """Receives the status of a running placer, and ends the placer when it no longer finds anything better."""

    report: Callable[[Status], None] | None = None
    """called after each simulation, or after several of a compiled search, many times a second"""
    patience: float | None = None
    """share of the budget: the placer ends after spending it without finding anything better; None = never"""
    stage: str = "heuristics"
    best: tuple[bool, float] = (True, float("inf"))
    heuristic_us: float = float("inf")
    gained_at: float = 0.0

    def look(self, share: float, best: tuple[bool, float]) -> None:
        """Record the best placement of an evaluator and the share of the budget that is spent, and call `report`.

        `best` is (whether it exceeds memory, penalised makespan). It may be the best of one heuristic alone. The
        observer keeps the best of all.
        """
        if best < self.best:
            self.best, self.gained_at = best, share
            if self.stage == "heuristics":
                self.heuristic_us = best[1]
        if self.report is not None:
            known = self.heuristic_us if self.stage != "heuristics" else float("inf")
            self.report(Status(self.stage, share, self.best[1], known))

    def has_enough(self, share: float) -> bool:
        """Whether the placer must end, given the share of the budget that is spent."""
        return self.patience is not None and share - self.gained_at >= self.patience


_OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observing(observer: Observer | None) -> Iterator[None]:
    """Let an observer observe all placers of this thread in the block.

    None switches observing off, for placements that aren't the user's own.
    """
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


def current() -> Observer | None:
    """Return the observer of this thread, or None."""
    return _OBSERVER.get()


def at_work(stage: str) -> None:
    """Set the stage of the observer, if there is one."""
    observer = _OBSERVER.get()
    if observer is not None:
        observer.stage = stage
