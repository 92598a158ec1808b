"""Errors of Placeto: mistakes of its users, each with a message that says where, what is wrong, and what to do."""

from __future__ import annotations

from typing import Any


class PlacetoError(ValueError):
    """What can't be done as asked, such as a file that another process is writing to."""

    def __str__(self) -> str:
        """The message in one line, with control characters and marks of direction spelled out: names may hold any."""
        line = " ".join(super().__str__().splitlines())
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


class UsageError(PlacetoError):
    """Arguments of a command that don't make sense."""


class GraphError(PlacetoError):
    """A graph, or a graph file, that breaks a rule of the format."""


class ClusterError(PlacetoError):
    """A cluster, a topology, or a cluster file, that breaks a rule of the format."""


class CostsError(PlacetoError):
    """An unknown cost model, or a file of costs that breaks a rule of its format."""


class PlacementError(PlacetoError):
    """A placement, or an order of ops, that doesn't fit its problem, or that can't be exported to a format."""


class PlanError(PlacetoError):
    """A plan that contradicts itself or its step, or a step for which there are no plans."""


class CaptureError(PlacetoError):
    """A module that can't be traced, or inputs or a loss that don't fit it."""


class RunError(PlacetoError):
    """A step that can't be run or has failed, or a device that this machine lacks.

    Attributes:
        node: the call that failed, a node of the traced program; None if it was none.
    """

    node: Any = None


class TrainingError(PlacetoError):
    """A training that can't begin or go on, a setting that can't be used, or a file that is no checkpoint."""


class PlacerError(PlacetoError):
    """A placer, policy, family or comparison that isn't there or can't be used as asked."""
