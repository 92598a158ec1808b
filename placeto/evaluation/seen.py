"""Which graphs of an evaluation a learned placer has learned from: its numbers on these say nothing about others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from placeto.heuristics import HEURISTICS
from placeto.pretrained import pretrained_path

if TYPE_CHECKING:
    from placeto.evaluation.comparison import PlacerSpec
    from placeto.problem.graph import ComputationGraph

_HOW = {"training": "was trained on", "validation": "had its parameters chosen by"}
_LISTED = 3  # how many graphs a sentence names, at most


def seen_before(specs: Sequence[PlacerSpec], graphs: Mapping[str, ComputationGraph]) -> list[str]:
    """Return a sentence for each checkpoint and use, on the graphs that it was trained on or validated by.

    Graphs count as the same if they differ in names only. Checkpoints of earlier versions don't say what they saw.

    Raises:
        CheckpointError: a checkpoint has something else in place of the names of its graphs.
    """
    sentences = []
    for placer in dict.fromkeys(spec.placer for spec in specs):
        if placer in HEURISTICS or pretrained_path(placer) is not None or not Path(placer).exists():
            continue
        from placeto.training.checkpoint import load_checkpoint, matching  # torch takes seconds

        used = load_checkpoint(placer).get("graphs", {})
        for part, how in _HOW.items():
            with matching(placer):
                known = dict(used.get(part, {}))
            own = [_named(name, known[graph.likeness]) for name, graph in graphs.items() if graph.likeness in known]
            if own:
                more = ", ..." if len(own) > _LISTED else ""
                sentences.append(f"the policy in {placer} {how} {len(own)} of these {len(graphs)} graphs: "
                                 f"{', '.join(own[:_LISTED])}{more}")  # fmt: skip
    return sentences


def _named(name: str, before: str) -> str:
    return name if name == before else f"{name} (as {before})"
