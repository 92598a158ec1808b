"""How an episode runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from placeto.plumbing.ranges import Weight


@dataclass(frozen=True)
class EnvConfig:
    """How an episode runs."""

    order: Literal["policy", "topological"] = "policy"
    """Who chooses the next node, a group of ops: the policy, or the topological order as in the paper. In the
    topological order a move may also leave a node where it is."""
    tolerance: Weight | None = 0.003
    """A move is taken back if the makespan is then more than this share above the best one. None keeps all moves.
    The supervised stage keeps them in any case; validation and placers follow this setting."""
