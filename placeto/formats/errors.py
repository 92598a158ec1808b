"""What all importers share."""

from __future__ import annotations

from placeto.problem.graph import GraphError


class ImporterError(GraphError):
    """A file of another program that can't be read as a graph; the message names the file and the line or node."""
