"""Driving the compiled search of `_moves` within a budget.

Legend: N ops, G groups, D devices, M kinds of moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from placeto.heuristics.local_search.moves import MOVES, Log, Rules, State, enter, search
from placeto.heuristics.local_search.neighbourhood import neighbourhood
from placeto.simulator.evaluator import Chunks, Evaluator

_GUIDE = 0.01  # differences of the guide's estimates that matter, as a share of the makespan
_TEMPERATURE = 1e-3  # at first, as a share of the makespan; it is steered from there
_MEMO = 1 << 16  # placements remembered; new ones overwrite old ones
_BLOCK = 12  # groups of a connected block that moves together, at most
_CRITICAL_SETS = 0.8  # share of the moves of sets that are of one with a critical group
_WINDOWS = 0.5  # share of the moves of sets that are of a window of it
_KNOWN = 2000  # proposals in a row that need no simulation, after which one is accepted whatever it costs
_STEER = 0.1  # how fast the temperature follows the share of accepted proposals
_CHUNK = 1000  # simulations between two looks at the clock, at most


class LocalSearch:
    """A search from a placement (G,) of groups, which takes its simulations from an evaluator.

    Args:
        evaluator: with a limit on simulations or seconds, not spent yet.
        start: device of each group; simulated again.
        mix: probability of each kind of move of `MOVES`.
        rng: source of randomness.
    """

    def __init__(
        self, evaluator: Evaluator, start: np.ndarray, mix: Mapping[str, float], rng: np.random.Generator
    ) -> None:
        problem, groups = evaluator.problem, evaluator.groups.num_groups
        devices, size = problem.num_devices, groups * (problem.num_devices - 1)
        self.evaluator = evaluator
        self.near = neighbourhood(problem, evaluator.groups)
        self.rng = rng
        chances = np.cumsum([mix.get(move, 0.0) for move in MOVES])
        guide = _GUIDE if mix.get("guided") else 0.0
        self.rules = Rules(chances / chances[-1], guide, _BLOCK, _CRITICAL_SETS, _WINDOWS, _KNOWN, _STEER)
        self.state = State(
            placement=np.zeros(problem.num_ops, np.int64),
            device=np.zeros(groups, np.int64),
            best=np.zeros(problem.num_ops, np.int64),
            critical=np.zeros(groups, np.int64),
            num_critical=np.zeros(1, np.int64),
            score=np.full(4, math.inf),
            pair=np.zeros((size, 2), np.int64),
            weight=np.zeros(size),
            num_pairs=np.zeros(1, np.int64),
            salt=rng.integers(1, 2**64, (groups, devices), np.uint64),
            hash=np.zeros(1, np.uint64),
            seen=np.zeros(_MEMO, np.uint64),
            bound=np.zeros(_MEMO),
            temperature=np.zeros(1),
        )
        self._log = Log(np.empty(_CHUNK, np.int64), np.empty(_CHUNK), np.empty(_CHUNK))
        self._chunks = Chunks(evaluator)
        self.restart(start)
        self.state.temperature[0] = _TEMPERATURE * self.score

    @property
    def device(self) -> np.ndarray:
        """(G,) where the search stands."""
        return self.state.device

    @property
    def score(self) -> float:
        """Penalised makespan of that, in microseconds."""
        return float(self.state.score[0])

    def restart(self, start: np.ndarray) -> None:
        """Go on from another placement (G,) of groups, which takes one simulation."""
        self.state.device[:] = start
        enter(self.evaluator.problem.arrays, self.near, self.state, self.rules.guide)
        self._absorb(1, 0)

    def run(self, hot: float = 0.0, cold: float = 0.0, patience: int | None = None) -> None:
        """Search until the budget is spent or there is no progress any more.

        Args:
            hot: share of the proposals that are accepted though worse, at the beginning; 0 accepts nothing worse.
            cold: such a share at the end.
            patience: end after so many proposals in a row without an improvement.
        """
        evaluator, ratio = self.evaluator, cold / hot if hot > 0.0 else 1.0
        began, fruitless = evaluator.progress, 0
        while (count := self._chunks.next(_CHUNK)) > 0:
            done = (evaluator.progress - began) / (1.0 - began)
            share = count / evaluator.limit if evaluator.limit is not None else 0.0
            if evaluator.seconds_limit is not None:
                share = max(share, self._chunks.pace * count / evaluator.seconds_limit)
            until, before = min(1.0, done + share / (1.0 - began)), evaluator.seconds
            standing = self.score
            simulated, logged = search(
                evaluator.problem.arrays,
                self.near,
                self.state,
                self.rules,
                self.rng,
                count,
                1 << 60 if patience is None else patience - fruitless,
                (hot * ratio**done, hot * ratio**until),
                self._log,
            )
            self._absorb(simulated, logged)
            fruitless = 0 if self.score < standing else fruitless + simulated
            if simulated < count:
                break
            self._chunks.took(count, evaluator.seconds - before)

    def _absorb(self, simulations: int, logged: int) -> None:
        state, improvements = self.state, list(zip(*(log[:logged].tolist() for log in self._log), strict=True))
        self.evaluator.absorb(state.best, float(state.score[2]), float(state.score[3]), simulations, improvements)
