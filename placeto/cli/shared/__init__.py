"""What several commands share: their options, how a GRAPH or a FACTORY is found, and how they print."""

from __future__ import annotations

__all__: list[str] = []
