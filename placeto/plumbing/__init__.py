"""What all rooms use and what knows nothing of graphs: compiled kernels, the terminal, signals, entry points."""

__all__: list[str] = []
