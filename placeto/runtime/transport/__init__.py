"""Tensors between devices: copies, queues between threads, links between processes, and sums of gradients."""

__all__: list[str] = []
