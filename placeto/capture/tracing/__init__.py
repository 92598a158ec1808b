"""Tracing a step: every op below autograd becomes a node of a `torch.fx` graph, as eager PyTorch would run it."""

__all__: list[str] = []
