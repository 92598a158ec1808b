"""From traced nodes to ops: their costs, names and lifetimes, and what the micro-batches of a step share."""

__all__: list[str] = []
