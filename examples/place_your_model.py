"""Places a training step of a model on four GPUs, and says where its modules are and what the step takes.

    python examples/place_your_model.py

Put your own module, inputs and loss in place of those of `make`. Nothing is computed, so that the model may have any
size: it is built on the device "meta".
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from pathlib import Path

import torch
from torch import Tensor, nn

import placeto


class Branches(nn.Module):
    """Four branches of convolutions over the same images, whose results are added."""

    def __init__(self, channels: int, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.branches = nn.ModuleList(
            nn.Sequential(*(nn.Conv2d(channels, channels, size, padding=size // 2) for _ in range(depth)))
            for size in (1, 3, 3, 5)
        )
        self.classifier = nn.Linear(channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> logits (B, 10)."""
        stem = self.stem(images)
        mixed = torch.stack([branch(stem) for branch in self.branches]).sum(0)
        return self.classifier(mixed.mean((2, 3)))


def make(channels: int = 256, batch: int = 64) -> tuple[nn.Module, list[Tensor], list[Tensor]]:
    """A model, its inputs, and the targets of its loss."""
    with torch.device("meta"):
        return Branches(channels), [torch.empty(batch, 3, 32, 32)], [torch.zeros(batch, dtype=torch.long)]


def main(cluster: str, simulations: int, out: Path) -> placeto.PlacementResult:
    """Place the step, print where each module is, and write the placement."""
    model, inputs, targets = make()
    result = placeto.place(
        model,
        inputs,
        cluster=cluster,
        loss=nn.functional.cross_entropy,
        targets=targets,
        optimizer="adam",
        simulations=simulations,
    )
    graph, names = result.problem.graph, result.problem.cluster.device_names
    ops: dict[str, Counter[str]] = defaultdict(Counter)
    for module, device in zip(graph.modules, result.placement.tolist(), strict=True):
        ops[module or "(no module)"][names[device]] += 1
    print(result)
    single_us, bound_us = result.problem.single_device_us, result.problem.lower_bound_us
    print(f"one device: {single_us / 1e3:.1f} ms, lower bound: {bound_us / 1e3:.1f} ms")
    for module, devices in sorted(ops.items()):
        print(f"{module:<16} " + ", ".join(f"{count} ops on {name}" for name, count in devices.most_common()))
    placeto.save_placement(result, out)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", default="4xv100", help="a name from `placeto list clusters`, or a file")
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("placement.json"))
    settings = parser.parse_args()
    main(settings.cluster, settings.simulations, settings.out)
