"""Sweeps of a trained policy: its most likely moves from a placement are tried, and kept where they do no harm.

Groups that the placement has on one device are joined as well, see `placeto.policies.nesting`, so that the policy can
move many at once.

Legend: G groups, D devices, C clusters of groups, M moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numba
import numpy as np

from placeto.environment.columns import NODE
from placeto.environment.config import EnvConfig
from placeto.environment.instance import Instance, InstanceBatch, make_instance, new_instance
from placeto.environment.observation import look
from placeto.heuristics.local_search.starts import round_to_groups
from placeto.policies.compiled import CompiledPolicy
from placeto.policies.nesting import Nest
from placeto.problem.grouping import join_groups
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.watch import at_work


@dataclass(frozen=True)
class GuidedConfig:
    """How a policy's answers and annealing take turns."""

    scales: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125)
    """Shares of the groups to which they are joined: the policy chooses among the moves of all of these at once."""
    moves: float = 1.25
    """Moves that such a sweep tries, for each group."""
    timed_scales: tuple[float, ...] = (0.25, 0.5, 1.0)
    """Under a clock, where a look of the policy takes as long as some simulations: such shares, one after another."""
    rounded_to: float = 0.125
    """Share of the groups to which they are joined first, wherever the best placement has them."""
    worth_rounding: float = 1.06
    """If that makes the makespan so many times longer at most."""
    fewest: int = 4
    """Groups of a level, at least."""
    pass_parts: int = 4
    """Into how many parts a group is split for the end of a pass, on the average."""
    pass_on_parts: float = 0.4
    """Share of a pass's simulations that go to them."""
    tries: int = 8
    """Placements tried between two looks of the policy, at most."""
    kept: int = 2
    """So many of them are kept, at most."""
    together: int = 4
    """Moves of parts that are tried together, at first: twice as many after these are kept, half if not."""
    most_together: int = 32
    """And never more."""
    patience: float = 0.2
    """A sweep ends after so many tries for each group, one after another, that found nothing better."""
    on_sweeps: float = 0.7
    """Share of the simulations that go to sweeps of groups, at most."""
    seconds_on_sweeps: float = 0.5
    """Share of the time that goes to them, at most."""
    seconds_on_parts: float = 0.3
    """Share of the time left that goes to the sweep over parts after them, at most."""
    worth_parts: float = 2.0
    """Under a clock, simulations for each move of a group from which on annealing parts is worth while."""
    cycles: int = 3
    """V-cycles, between which what is then left is divided evenly."""
    on_groups: float = 0.45
    """Share of a cycle that goes to groups, the rest to parts."""
    on_levels: float = 0.5
    """Share of that which goes to a sweep, where there is one, at most."""


@dataclass(frozen=True, eq=False)
class View:
    """A problem's groups, joined or not, as a policy sees them."""

    batch: InstanceBatch  # of one instance
    cluster: np.ndarray  # (G,) int64, in which cluster each group is
    first: np.ndarray  # (C,) int64, the first group of each

    @classmethod
    def of(cls, instance: Instance, cluster: np.ndarray) -> View:
        """Of an instance whose groups are such clusters."""
        return cls(InstanceBatch.of([instance]), cluster, np.unique(cluster, return_index=True)[1])

    def shows(self, placement: np.ndarray) -> bool:
        """Whether the placement (G,) has each cluster on one device."""
        return bool((placement[self.first][self.cluster] == placement).all())


class Sweeper:
    """Offers an evaluator what a policy's most likely moves lead to.

    What it observes was simulated before and counts once.
    """

    def __init__(self, policy: CompiledPolicy, env: EnvConfig, search: GuidedConfig) -> None:
        self.policy, self.env, self.search = policy, env, search

    def sweep(self, instance: Instance, evaluator: Evaluator) -> None:
        """Sweeps over groups and over groups that are joined, from the evaluator's best placement of groups.

        Where that loses little if groups are joined wherever they are, such a sweep comes first. Under a clock, and for
        a policy that visits groups in a fixed order, there follows a sweep for each of the further levels.
        """
        self._sweep_rounded(instance, evaluator)
        self.sweep_levels(instance, evaluator)

    def sweep_levels(self, instance: Instance, evaluator: Evaluator) -> None:
        """The same without groups joined wherever they are."""
        timed = evaluator.seconds_limit is not None
        if not timed and self.env.order != "topological":
            self._sweep_all_levels(instance, evaluator)
            return
        for share in self.search.timed_scales:
            self.sweep_level(instance, share, evaluator)

    def _sweep_rounded(self, instance: Instance, evaluator: Evaluator) -> None:
        """A sweep over groups joined wherever they are, if rounding the best placement to these loses little."""
        own, problem, (start, best) = self.search, instance.problem, evaluator.best_groups
        joined = join_groups(problem, instance.groups, max(own.fewest, round(own.rounded_to * len(start))))
        if joined.num_groups == len(start) or evaluator.exhausted:
            return
        cluster = joined.group[instance.groups.first_op]
        view = View.of(make_instance(problem, joined), cluster)
        here = round_to_groups(problem, joined, start[instance.groups.group])
        score = evaluator.score(here[cluster])
        if score <= own.worth_rounding * best:
            at_work("policy")
            self._sweep(view, here, score, evaluator)

    def sweep_level(self, instance: Instance, share: float, evaluator: Evaluator, together: int = 1) -> None:
        """Move each group at most once, from the evaluator's best placement of groups.

        Below a `share` of 1 groups are joined, as long as there are more than this share of them. Between two looks of
        the policy its most likely moves are tried in turn until two are kept, so many `together`: more after some were
        kept, fewer after they weren't. Under a clock all cores try at once, and the best of what they tried is kept.
        """
        start, best = evaluator.best_groups
        at_work("policy on parts" if together > 1 else "policy")
        of = np.arange(len(start))  # (G,) in which cluster each group is
        if share < 1.0:
            nest = Nest(instance.problem, instance.groups)
            (of,) = nest.joined(start, [max(self.search.fewest, round(share * len(start)))])
            instance = new_instance(instance.problem, nest.groups_of(of))
        view = View.of(instance, of)
        self._sweep(view, start[view.first], best, evaluator, together)

    def _sweep(self, view: View, here: np.ndarray, best: float, evaluator: Evaluator, together: int = 1) -> None:
        """The same of a view, from a placement (C,) of its clusters whose score is `best`."""
        own, of, visited = self.search, view.cluster, np.zeros(len(here), bool)
        most = own.most_together if together > 1 else 1
        abreast = numba.get_num_threads() if evaluator.seconds_limit is not None else 1
        patience, vain = max(2.0 * own.tries, own.patience * len(here)), 0
        while not visited.all() and not evaluator.exhausted and vain < patience:
            moves = self._likeliest(view, here, visited, max(own.tries, together))
            if not len(moves):  # the policy's numbers overflow: it has no opinion, and won't get one
                break
            stay = here[moves[:, 0]] == moves[:, 1]
            visited[moves[stay, 0]] = True
            moves, kept, tries = moves[~stay], 0, 0
            while len(moves) and kept < own.kept and tries < own.tries and not evaluator.exhausted:
                sets = [moves[first : first + together] for first in range(0, len(moves), together)][:abreast]
                rows = np.repeat(here[None], len(sets), 0)
                for row, chosen in zip(rows, sets, strict=True):
                    row[chosen[:, 0]] = chosen[:, 1]
                scores = evaluator.score_batch(rows[:, of])
                tries += len(sets)
                vain = 0 if scores.min() < best else vain + len(sets)
                best = min(best, float(scores.min()))
                good = scores <= self._bearable(best)
                if good.any():
                    first = int(scores.argmin())
                    here, kept, together = rows[first], kept + 1, min(2 * together, most)
                    visited[sets[first][:, 0]] = True
                else:
                    together = max(1, len(sets[0]) // 2)
                for chosen, well in zip(sets, good, strict=True):
                    if len(chosen) == 1 and not well:
                        visited[chosen[:, 0]] = True
                moves = moves[~visited[moves[:, 0]]]

    def _sweep_all_levels(self, instance: Instance, evaluator: Evaluator) -> None:
        """Try the moves of groups and of clusters that the policy thinks best, no move twice.

        Between two looks two are kept at most. Clusters are made anew where a kept move has torn them apart.
        """
        at_work("policy")
        own, problem, (here, best) = self.search, instance.problem, evaluator.best_groups
        nest, groups = Nest(problem, instance.groups), np.arange(len(here))
        left, tried = max(2.0 * own.tries, own.moves * len(here)), set[tuple[bytes, int]]()
        views: list[View | None] = []
        while left > 0 and not evaluator.exhausted:
            views = self._views(instance, nest, here, views)
            found = [move for view in views if view is not None for move in self._untried(view, here, tried)]
            if not found:
                return
            moves = sorted(found, key=lambda move: -move[0])
            kept, moved = 0, np.zeros(len(here), bool)
            for _, view, cluster, device in moves[: own.tries]:
                members = groups[view.cluster == cluster]
                key = members.tobytes()
                if left <= 0 or evaluator.exhausted or kept == own.kept:
                    break
                if (key, device) in tried or moved[members].any():
                    continue
                row = here.copy()
                row[members] = device
                score, left = evaluator.score(row), left - 1
                tried.add((key, device))
                best = min(best, score)
                if score <= self._bearable(best):
                    tried.add((key, int(here[members[0]])))  # not back again
                    here, kept = row, kept + 1
                    moved[members] = True

    def _views(self, instance: Instance, nest: Nest, here: np.ndarray, before: list[View | None]) -> list[View | None]:
        """The groups and, for each further level, clusters: those of `before` where the placement shows them.

        None for a level at which nothing more is joined.
        """
        own, size = self.search, len(here)
        if before and all(view is None or view.shows(here) for view in before):
            return before
        views: list[View | None] = before[:1] or [View.of(instance, np.arange(size))]
        counts = [max(own.fewest, round(share * size)) for share in own.scales[1:]]
        for number, cluster in enumerate(nest.joined(here, counts), 1):
            old, count = before[number] if before else None, int(cluster.max()) + 1
            if old is not None and old.shows(here):
                views.append(old)
            elif count < size:
                views.append(View.of(new_instance(instance.problem, nest.groups_of(cluster)), cluster))
            else:
                views.append(None)
            size = count
        return views

    def _untried(
        self, view: View, here: np.ndarray, tried: set[tuple[bytes, int]]
    ) -> Iterator[tuple[float, View, int, int]]:
        """The most likely moves of a view that weren't tried: (logit, view, cluster, device), one a cluster."""
        place = here[view.first]
        logits = self._logits(view, place, np.zeros(len(place), bool))
        count, devices, seen = 0, logits.shape[1], set[int]()
        for flat in np.argsort(-logits, axis=None, kind="stable")[: 8 * self.search.tries].tolist():
            cluster, device = divmod(flat, devices)
            if count == self.search.tries or not np.isfinite(logits[cluster, device]):
                return
            if cluster in seen or (np.flatnonzero(view.cluster == cluster).tobytes(), device) in tried:
                continue
            seen.add(cluster)
            count += 1
            yield float(logits[cluster, device]), view, cluster, device

    def _bearable(self, best: float) -> float:
        """Up to which score a move is kept."""
        return np.inf if self.env.tolerance is None else best * (1.0 + self.env.tolerance)

    def _likeliest(self, view: View, here: np.ndarray, visited: np.ndarray, count: int) -> np.ndarray:
        """(M, 2) clusters and devices: the moves that the policy would make next, one a cluster, likeliest first."""
        odds = self._logits(view, here, visited)
        device, most = odds.argmax(1), odds.max(1)
        order = np.argsort(-most, kind="stable")[: min(count, np.isfinite(most).sum())]
        return np.stack([order, device[order]], 1)

    def _logits(self, view: View, here: np.ndarray, visited: np.ndarray) -> np.ndarray:
        """(C, D) of a placement (C,) of clusters; -inf for what can't be chosen, all where they overflow."""
        seen, step = look(view.batch, here, visited), visited.sum()
        legal = seen.offered
        if self.env.order == "topological":  # the traversal's node, which may also stay
            legal &= (seen.traversal == step)[:, None]
            seen.node[:, NODE.is_current] = seen.traversal == step
        else:
            legal[np.arange(len(here)), here] = False
        logits = self.policy(seen.node, seen.pair, seen.arcs, seen.edge, seen.current, legal)
        return np.where(legal & np.isfinite(logits).all(), logits, -np.inf)
