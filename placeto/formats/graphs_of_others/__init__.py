"""Importers of graphs that other programs wrote as text or JSON, each in a file of its own."""

__all__: list[str] = []
