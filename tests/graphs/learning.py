"""Whether a model of a family learns."""

import torch

from graphs.training_step import TrainingStep


def assert_learns(step: TrainingStep, values: int, rate: float, steps: int) -> None:
    """On random inputs, whole ones below `values`, the loss falls by a tenth, and all parameters get gradients."""
    inputs = [torch.randn_like(x) if x.is_floating_point() else torch.randint_like(x, values) for x in step.inputs]
    targets = [torch.randint_like(y, values) for y in step.targets]
    optimizer = torch.optim.Adam(step.module.parameters(), rate)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = step.loss(step.module(*inputs), *targets)
        value.backward()
        assert all(p.grad is not None for p in step.module.parameters())
        optimizer.step()
        losses.append(float(value.detach()))
    assert losses[-1] < 0.9 * losses[0]
