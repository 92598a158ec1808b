"""A factory of a small network with a parallel plan; processes of torchrun import it."""

from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class WithLoss(nn.Module):
    """A model that computes its loss itself, and has a parallel plan, as those of transformers."""

    def __init__(self, layers: nn.Module, plan: Any) -> None:
        super().__init__()
        self.layers, self.tp_plan = layers, plan

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def with_loss() -> tuple[Any, ...]:
    blocks, (x,), _, (targets,), plan = net()
    return WithLoss(blocks, {f"layers.{path}": style for path, style in plan.items()}), {"x": x, "labels": targets}


def net(layers: int = 3) -> tuple[Any, ...]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    blocks = nn.Sequential(*(Block() for _ in range(layers)), nn.Linear(16, 10))
    targets = (torch.arange(16) % 10,)
    plan = {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()}
    return blocks, (torch.randn(16, 16),), nn.functional.cross_entropy, targets, plan


class Loud(Block):
    """A block that says when it is called."""

    def forward(self, x: Tensor) -> Tensor:
        print("a loud block is called")
        return super().forward(x)


class Features(nn.Module):
    """Lists of containers that are never called, and blocks whose parts may be called one by one."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.apart, self.model, self.head = apart, nn.Module(), nn.Linear(16, 10)
        self.model.levels = nn.ModuleList(nn.ModuleDict({"up": Loud(), "down": nn.Sequential(Block())}) for _ in "ab")

    def forward(self, x: Tensor) -> Tensor:
        for level in self.model.levels:
            x = level["up"](x)
            for part in level["down"] if self.apart else [level["down"]]:
                x = part(x)
        return self.head(x)


def features(apart: bool = False) -> tuple[Any, ...]:
    return Features(apart), (torch.randn(16, 16),), nn.functional.cross_entropy, (torch.arange(16) % 10,)
