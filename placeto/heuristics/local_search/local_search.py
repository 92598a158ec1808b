"""The local search in Python: it calls the compiled search, `search_loop.search`, in chunks, within a budget.

Legend: N ops, G groups, D devices.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from placeto.heuristics.local_search.moves import State
from placeto.heuristics.local_search.neighbourhood import neighbourhood
from placeto.heuristics.local_search.search_loop import Log, Stretch, search
from placeto.heuristics.local_search.thread_pool import CALL, dismiss, new_batch, new_thread_pool
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.threads import pool, threads

TEMPERATURE = 1e-3
"""The first temperature, as a share of the makespan. Later it follows the share of accepted proposals."""
MEMO = 1 << 16
"""Number of simulated placements that are remembered, a power of two. New ones overwrite old ones."""
KNOWN = 2000
"""After this number of proposals in a row that need no simulation, annealing accepts the next one, whatever its
makespan, and a descent ends."""
CHUNK = 1000
"""Upper limit of the simulations in one call of the compiled search, which doesn't read the clock."""
AHEAD = 8
"""Proposals of a speculative batch for each thread, if there are several threads: 2, 4 and 16 are level."""


class LocalSearch:
    """A search from a placement (G,) of groups, which takes its simulations from an evaluator.

    It uses as many threads as `threads` says. If the budget is a number of simulations, the result doesn't depend on
    their number: simulations of proposals that a speculative batch drops (see `thread_pool`) don't count.

    Args:
        evaluator: with a limit on simulations or seconds, not spent yet.
        start: (G,) device of each group; this placement is simulated once more.
        rng: source of randomness.
    """

    def __init__(self, evaluator: Evaluator, start: np.ndarray, rng: np.random.Generator) -> None:
        problem, groups = evaluator.problem, evaluator.groups.num_groups
        devices = problem.num_devices
        self.evaluator = evaluator
        self.near = neighbourhood(problem, evaluator.groups)
        self.state = State(
            placement=np.zeros(problem.num_ops, np.int64),
            device=np.array(start, np.int64),
            best=np.zeros(problem.num_ops, np.int64),
            critical=np.zeros(groups, np.int64),
            num_critical=np.zeros(1, np.int64),
            score=np.full(1, math.inf),
            best_score=np.full(1, math.inf),
            best_makespan=np.full(1, math.inf),
            best_overflow=np.full(1, math.inf),
            marked=np.zeros(groups, np.bool_),
            salt=rng.integers(1, 2**64, (groups, devices), np.uint64),
            hash=np.zeros(1, np.uint64),
            seen=np.zeros(MEMO, np.uint64),
            bound=np.zeros(MEMO),
            temperature=np.zeros(1),
            counter=rng.integers(2**64, size=1, dtype=np.uint64),
        )
        self._threads = threads()
        self._batch = new_batch(AHEAD * self._threads if self._threads > 1 else 1, groups)
        self._pool = new_thread_pool(self._threads, problem.arrays)
        self._log = Log(np.empty(CHUNK, np.int64), np.empty(CHUNK), np.empty(CHUNK))
        self._absorb(*self._search(Stretch(1, KNOWN, (0.0, 0.0), restart=True)))
        self.state.temperature[0] = TEMPERATURE * self.score

    @property
    def device(self) -> np.ndarray:
        """(G,) device of each group in the current placement."""
        return self.state.device

    @property
    def score(self) -> float:
        """Penalised makespan of the current placement, in microseconds."""
        return float(self.state.score[0])

    def run(self, hot: float = 0.0, cold: float = 0.0) -> None:
        """Search until the budget is spent, or (with `hot` 0) `KNOWN` proposals in a row are known.

        Args:
            hot: share of the proposals that are accepted though worse, at the beginning; 0 accepts nothing worse.
            cold: share of the proposals that are accepted though worse, at the end of the budget.
        """
        evaluator, ratio = self.evaluator, cold / hot if hot > 0.0 else 1.0
        began = evaluator.progress
        while (count := evaluator.next_chunk(len(self._log.simulation))) > 0:
            done = (evaluator.progress - began) / (1.0 - began)
            share = count / evaluator.limit if evaluator.limit is not None else 0.0
            if evaluator.seconds_limit is not None:
                share = max(share, evaluator.pace * count / evaluator.seconds_limit)
            until, before = min(1.0, done + share / (1.0 - began)), evaluator.seconds
            simulated, logged = self._search(Stretch(count, KNOWN, (hot * ratio**done, hot * ratio**until)))
            self._absorb(simulated, logged)
            if simulated < count:
                break
            evaluator.took(count, evaluator.seconds - before)

    def _search(self, stretch: Stretch) -> tuple[int, int]:
        number = int(self._pool.control[CALL])
        run = partial(
            search,
            self.evaluator.problem.arrays,
            self.near,
            self.state,
            self._batch,
            self._pool,
            stretch,
            self._log,
        )
        try:
            for thread in range(1, self._threads if stretch.simulations > 1 else 1):
                pool("search", self._threads - 1).submit(run, thread, number)
            return run(0, number)
        finally:
            dismiss(self._pool)

    def _absorb(self, simulations: int, logged: int) -> None:
        state, improvements = self.state, list(zip(*(log[:logged].tolist() for log in self._log), strict=True))
        us, overflow = float(state.best_makespan[0]), float(state.best_overflow[0])
        self.evaluator.absorb(state.best, us, overflow, simulations, improvements)
