"""Which graphs of an evaluation a learned placer has learned from: its numbers on these say nothing about others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from placeto.placers import is_heuristic
from placeto.pretrained import TRAINED_ON, pretrained_path

if TYPE_CHECKING:
    from placeto.evaluation.comparison import PlacerSpec
    from placeto.problem.graph import ComputationGraph

_HOW = {"training": "was trained on", "validation": "had its parameters chosen by"}
_LISTED = 3  # how many graphs a sentence names, at most


def seen_before(specs: Sequence[PlacerSpec], graphs: Mapping[str, ComputationGraph]) -> list[str]:
    """Return a sentence for each checkpoint and use, on the graphs that it was trained on or validated by.

    Graphs count as the same if they differ in names only. Checkpoints of earlier versions don't say what they saw. Of
    the policy that comes with the package, the names of the graphs are known.

    Raises:
        TrainingError: a checkpoint has something else in place of the names of its graphs.
    """
    sentences = []
    for placer in dict.fromkeys(spec.placer for spec in specs):
        if pretrained_path(placer) is not None or placer == "pretrained":
            sentences += _by_package(graphs)
            continue
        if is_heuristic(placer) or not Path(placer).exists():
            continue
        from placeto.training.checkpoint import load_checkpoint, matching  # torch takes seconds

        used = load_checkpoint(placer).get("graphs", {})
        for part, how in _HOW.items():
            with matching(placer):
                known = dict(used.get(part, {}))
            own = [_named(name, known[graph.likeness]) for name, graph in graphs.items() if graph.likeness in known]
            sentences += _sentence(f"the policy in {placer}", how, own, len(graphs))
    return sentences


def _by_package(graphs: Mapping[str, ComputationGraph]) -> list[str]:
    """Return a sentence on the graphs from which the policy that comes with the package has learned.

    Its parameters are those at the end of its training, so that no graph has chosen them.
    """
    known = {f"{family}:train:{index}" for family, count in TRAINED_ON.items() for index in range(count)}
    own = [name for name in graphs if name in known]
    return _sentence("the policy of the package", _HOW["training"], own, len(graphs))


def _sentence(policy: str, how: str, own: Sequence[str], count: int) -> list[str]:
    """Return the sentence on `own` of `count` graphs; none if there are none."""
    more = ", ..." if len(own) > _LISTED else ""
    return [f"{policy} {how} {len(own)} of these {count} graphs: {', '.join(own[:_LISTED])}{more}"] if own else []


def _named(name: str, before: str) -> str:
    return name if name == before else f"{name} (as {before})"
