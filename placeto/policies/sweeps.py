"""Sweeps of a trained policy: the moves that it scores highest are simulated, and some of them are kept.

A move is taken back if it ends more than a tolerance above the best makespan so far. Groups that the placement has on
one device are also joined (see `placeto.heuristics.local_search.joining`), so that one move can give many groups
another device.

Legend: G groups, D devices, C joined groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from placeto.environment.columns import NODE
from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import Instance, InstanceBatch, make_instance
from placeto.environment.observation import Observation, look
from placeto.heuristics.local_search.joining import Coarsening
from placeto.plumbing.ranges import Count
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.observer import at_work

Scorer = Callable[[Observation, np.ndarray], np.ndarray]
"""Returns the logits (C, D) of moves, from the observation of C joined groups and the legal moves (C, D) bool."""


@dataclass(frozen=True)
class GuidedConfig:
    """How the sweeps of guided search go.

    The differences of makespans below are those with 50 to 1,000 simulations, unless seconds are given.
    """

    levels: Count = 4
    """The policy scores moves of groups, of half as many joined groups, and so on: so many levels. With one level,
    makespans are 0.4 to 0.7 % longer."""
    in_vain: Count = 32
    """A sweep ends after so many tries in a row that found nothing better. With 64, makespans are as long as with 32.
    With 16, they are 1 % longer after 1 to 3 s."""
    tries: Count = 8
    """At most so many placements are simulated after an evaluation of the policy. With four, and one of them kept,
    makespans are 0.6 % longer."""
    kept: Count = 2
    """At most so many of the placements that are simulated after an evaluation of the policy are kept. With two,
    makespans are as long as with one, and the search takes 55 % of the time. With three, makespans are 0.2 to 0.4 %
    longer."""


@dataclass(frozen=True, eq=False)
class View:
    """A problem's groups at one level, joined or single (C = G), for which the policy scores moves."""

    batch: InstanceBatch  # one instance, whose groups are the joined groups
    joined: np.ndarray  # (G,) int64, the joined group of each group
    first: np.ndarray  # (C,) int64, the first group of each joined group
    traversal: np.ndarray  # (C,) int64, position of each joined group in topological order

    @classmethod
    def of(cls, instance: Instance, joined: np.ndarray) -> View:
        """Make the view of an instance whose C groups are the joined groups in `joined` (G,)."""
        first = np.unique(joined, return_index=True)[1]
        return cls(InstanceBatch.of([instance]), joined, first, instance.traversal)

    def shows(self, placement: np.ndarray) -> bool:
        """Return whether a placement (G,) has each joined group on one device."""
        return bool((placement[self.first][self.joined] == placement).all())


class Sweeper:
    """Tries a policy's most likely moves: simulates them with an evaluator, and goes on from those that it keeps.

    An evaluation of the policy is no further simulation of the budget, because the placement was simulated before.
    """

    def __init__(self, policy: Scorer, env: EnvConfig, search: GuidedConfig) -> None:
        self.policy, self.env, self.search = policy, env, search
        self._in_order = env.order == "topological"

    def sweep(self, evaluator: Evaluator) -> None:
        """Try the moves of groups and of joined groups that the policy scores highest, none of them twice.

        It begins with the evaluator's best placement of groups. After each evaluation of the policy, at most `tries`
        moves are simulated and at most `kept` of them are kept. Groups are joined anew where a kept move has given a
        part of a joined group another device. If the policy visits groups in topological order, each evaluation scores
        the moves of one group of each view, one group after the other.
        """
        at_work("policy")
        settings, (placement, best) = self.search, evaluator.best_groups
        instance = make_instance(evaluator.problem, evaluator.groups)
        coarsening, groups = Coarsening(instance.problem, instance.groups), np.arange(len(placement))
        vain, tried = 0, set[tuple[bytes, int]]()
        views: list[View | None] = []
        for turn in range(len(placement)) if self._in_order else count():
            if vain >= settings.in_vain or evaluator.exhausted:
                return
            views = self._views(instance, coarsening, placement, views)
            moves_found = [
                move for view in views if view is not None for move in self._untried(view, placement, tried, turn)
            ]
            if not moves_found and not self._in_order:
                return
            moves = sorted(moves_found, key=lambda move: -move[0])
            kept, moved = 0, np.zeros(len(placement), bool)
            for _, view, which, device in moves[: settings.tries]:
                members = groups[view.joined == which]
                key = members.tobytes()
                if vain >= settings.in_vain or evaluator.exhausted or kept == settings.kept:
                    break
                if (key, device) in tried or moved[members].any():
                    continue
                row = placement.copy()
                row[members] = device
                score = evaluator.score(row)
                tried.add((key, device))
                vain = 0 if score < best else vain + 1
                best = min(best, score)
                if score <= self._bearable(best):
                    tried.add((key, int(placement[members[0]])))  # the move back would only undo this one
                    placement, kept = row, kept + 1
                    moved[members] = True

    def _views(
        self, instance: Instance, coarsening: Coarsening, placement: np.ndarray, before: list[View | None]
    ) -> list[View | None]:
        """Return a view of the groups and, for each further level, a view of joined groups.

        Views of `before` are used again if `placement` (G,) has each of their joined groups on one device. The
        view is None at a level at which no further groups are joined.
        """
        size = len(placement)
        if before and all(view is None or view.shows(placement) for view in before):
            return before
        views: list[View | None] = before[:1] or [View.of(instance, np.arange(size))]
        counts = [max(1, size >> level) for level in range(1, self.search.levels)]
        for number, joined in enumerate(coarsening.joined(placement, counts), 1):
            old, left = before[number] if before else None, int(joined.max()) + 1
            if old is not None and old.shows(placement):
                views.append(old)
            elif left < size:
                views.append(View.of(make_instance(instance.problem, coarsening.groups_of(joined)), joined))
            else:
                views.append(None)
            size = left
        return views

    def _untried(
        self, view: View, placement: np.ndarray, tried: set[tuple[bytes, int]], turn: int
    ) -> Iterator[tuple[float, View, int, int]]:
        """Yield the most likely moves of a view that weren't tried: (logit, view, joined group, device).

        There is at most one move for each joined group, and at most `tries` moves in all.
        """
        place = placement[view.first]
        logits = self._logits(view, place, turn % len(place))
        devices, seen = logits.shape[1], set[int]()
        for flat in np.argsort(-logits, axis=None, kind="stable").tolist():
            moved, device = divmod(flat, devices)
            likely = np.isfinite(logits[moved, device]) and device != place[moved]
            if len(seen) == self.search.tries or not likely:
                return
            if moved in seen or (np.flatnonzero(view.joined == moved).tobytes(), device) in tried:
                continue
            seen.add(moved)
            yield float(logits[moved, device]), view, moved, device

    def _bearable(self, best: float) -> float:
        """Return the largest score in microseconds with which a move is kept, if `best` is the best one so far."""
        return np.inf if self.env.tolerance is None else best * (1.0 + self.env.tolerance)

    def _logits(self, view: View, placement: np.ndarray, turn: int) -> np.ndarray:
        """Return the logits (C, D) of the moves of joined groups from `placement` (C,).

        They are -inf for moves that can't be chosen, and for all moves if another logit isn't finite.
        """
        visited = (view.traversal < turn) & self._in_order
        seen = look(view.batch, placement, visited)
        legal = seen.offered.copy()
        if self._in_order:  # only the traversal's node moves, and it may also stay where it is
            legal &= (view.traversal == turn)[:, None]
            seen.node[:, NODE.is_current] = view.traversal == turn
        else:
            legal[np.arange(len(placement)), placement] = False
        logits = self.policy(seen, legal)
        return np.where(legal & np.isfinite(logits[legal]).all(), logits, -np.inf)
