"""Measuring placed steps and their ops on devices of this machine, and placing by what was measured."""

__all__: list[str] = []
