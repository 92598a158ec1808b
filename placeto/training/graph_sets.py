"""The graphs of a training: which may be trained on, and which may choose the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placeto.errors import TrainingError
from placeto.problem.problem import PlacementProblem
from placeto.training.checkpoint import matching


def check_graphs(
    problems: Mapping[str, PlacementProblem],
    validation: Mapping[str, PlacementProblem] | None,
    initial: Mapping[str, Any] | None,
) -> None:
    """Refuse graphs that can't be trained on or validated on.

    Args:
        problems: training problems by name.
        validation: problems by which the parameters are chosen; None = the training problems.
        initial: the checkpoint that the training begins with, if there is one.

    Raises:
        TrainingError: no problem to train on or to validate on, a cluster of one device, or a validation graph that is
            a training graph, also one of the training of `initial`; or `initial` has something else in place of the
            names of its graphs.
    """
    if not problems or (validation is not None and not validation):
        raise TrainingError(f"there is no graph to {'validate' if problems else 'train'} on")
    validation = validation or {}
    alike = {problem.graph.likeness: name for name, problem in problems.items()}
    for name, problem in validation.items():
        if (also := alike.get(problem.graph.likeness)) is not None:
            names = "" if problem.graph.hash == problems[also].graph.hash else ", but for the names of its ops"
            raise TrainingError(f"graph {name!r} is in the validation set and, as {also!r}, "
                                f"in the training set{names}; they must be disjoint")  # fmt: skip
    lonely = [name for name, problem in {**problems, **validation}.items() if problem.num_devices < 2]
    if lonely:
        raise TrainingError(f"graph {lonely[0]!r}: there is nothing to place on a cluster of one device")
    _check_seen(initial or {}, validation)


def _check_seen(initial: Mapping[str, Any], validation: Mapping[str, PlacementProblem]) -> None:
    """Refuse validation on a graph that the checkpoint to begin with was trained on."""
    with matching("the checkpoint to begin with"):
        trained = dict(initial.get("graphs", {}).get("training", {}))
    for name, problem in validation.items():
        if (also := trained.get(problem.graph.likeness)) is not None:
            raise TrainingError(f"graph {name!r} is in the validation set, and the checkpoint to begin with was "
                                f"trained on it, as {also!r}: leave it out of one of the two")  # fmt: skip
