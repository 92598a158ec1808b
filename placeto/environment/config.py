"""How an episode runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from placeto.ranges import Weight


@dataclass(frozen=True)
class EnvConfig:
    """How an episode runs."""

    order: Literal["policy", "topological"] = "policy"
    """Who picks the next node: the policy, or the paper's fixed traversal in topological order, which may also leave a
    node where it is."""
    tolerance: Weight | None = 0.003
    """A move is taken back if the makespan is then more than this fraction above the best met; None keeps all moves."""
