"""Which share of its peak does an H100 sustain for a whole step?

python -m experiments.sustained [--data ../shared/data/parallel]

The table of efficiencies is fitted to ops that were measured alone, in short runs. Steps of llm-foundry's MPTs on eight
GPUs of one node (mosaicml/llm-foundry 8c8dd48, scripts/train/benchmarking/README.md) are computed op after op on one
GPU; what FSDP sends beside this isn't counted. `sustained` of the table was chosen by the steps on H100 of at most
4,096 words. In longer ones most work is attention, by kernels of 2023 that didn't use what an H100 has new. The steps
of Lambda are those of `held_out_steps`.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from experiments import held_out_steps
from experiments.command import command
from experiments.cost_models import alone_ms, captured, summary
from experiments.tables import markdown
from placeto.capture.trace import capture_training
from placeto.problem.cluster import Device
from placeto.problem.cluster.boards import A100, A100_40GB, H100
from placeto.problem.costs import EFFICIENCY, CostModel
from placeto.problem.graph import ComputationGraph

BOARDS = {"H100 80GB BF16": H100, "A100 80GB": A100, "A100 40GB": A100_40GB}
SHARES = (0.6, 0.56, 0.54, 0.52, 0.5, 0.48, 0.46, 0.44)
LONGEST = 4096
"""Words of a sequence whose attention is a small part of the step."""


@dataclass(frozen=True)
class Sustained:
    """Predict measured steps with several shares."""

    data: Path = Path("../shared/data/parallel")
    """folder with measured_parallel_steps.csv"""
    out: Path = Path("runs/held_out_steps")
    """where captured graphs of Lambda's steps go"""


class Shape(NamedTuple):
    """An MPT's layers, and what a GPU computes at a time."""

    width: int
    heads: int
    words: int  # of the vocabulary
    batch: int
    length: int
    recomputed: bool


class Step(NamedTuple):
    """A measured step."""

    board: str
    shape: Shape
    layers: int
    micro_batches: int
    measured_ms: float


class Block(nn.Module):
    """A layer of an MPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        sizes = {
            "parts": (width, 3 * width),
            "out": (width, width),
            "up": (width, 4 * width),
            "down": (4 * width, width),
        }
        self.linear = nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, H)."""
        parts = self.linear["parts"](self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.linear["out"](mixed.transpose(1, 2).flatten(2))
        return x + self.linear["down"](F.gelu(self.linear["up"](self.norms[1](x))))


class MPT(nn.Module):
    """MosaicML's MPT, in 16 bits as FSDP computes it."""

    def __init__(self, shape: Shape, layers: int) -> None:
        super().__init__()
        self.embedding, self.recomputed = nn.Embedding(shape.words, shape.width), shape.recomputed
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(layers))
        self.norm = nn.LayerNorm(shape.width, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        """(B, T) -> (B, T, words)."""
        x = self.embedding(words)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputed else block(x)
        return F.linear(self.norm(x), self.embedding.weight)


def loss(output: Tensor, words: Tensor) -> Tensor:
    """Cross entropy in 32 bits."""
    return F.cross_entropy(output.float().flatten(0, 1), words.flatten())


@cache
def graphs(shape: Shape) -> tuple[ComputationGraph, ComputationGraph]:
    """The step of an MPT of one layer, and of two."""
    with torch.device("meta"):
        words = torch.empty(shape.batch, shape.length, dtype=torch.long)
        one, two = (MPT(shape, layers).bfloat16() for layers in (1, 2))
    return capture_training(one, [words], loss, targets=[words]), capture_training(two, [words], loss, targets=[words])


def read_steps(data: Path) -> Iterator[Step]:
    """The steps on one node."""
    with (data / "measured_parallel_steps.csv").open() as file:
        for row in csv.DictReader(file):
            board = next((name for name in BOARDS if name in row["gpu"]), None)
            if row["case"] == "llm-foundry" and row["gpus"] == "8" and board is not None:
                width, heads, words, batch, length = (
                    int(row[key]) for key in ("hidden", "heads", "vocab", "micro_batch", "seq")
                )
                shape = Shape(width, heads, words, batch, length, row["recompute"] == "full")
                yield Step(board, shape, int(row["layers"]), int(row["microbatches"]), 1e3 * float(row["step_s"]))


def predicted_ms(step: Step, device: Device, costs: CostModel) -> float:
    """Milliseconds of the computing of a step."""
    one, two = (sum(alone_ms(device, costs, graph)) for graph in graphs(step.shape))
    return step.micro_batches * (one + (step.layers - 1) * (two - one))


def main(config: Sustained) -> None:
    """Predict, print."""
    if not (config.data / "measured_parallel_steps.csv").exists():
        print(f"skipped: there is no {config.data / 'measured_parallel_steps.csv'}")
        return
    groups: dict[str, list[Step]] = defaultdict(list)
    for step in read_steps(config.data):
        groups[f"{step.board}, {'up to' if step.shape.length <= LONGEST else 'more than'} {LONGEST:,} words"].append(
            step
        )
    lambdas = [step for step in held_out_steps.steps() if "H100" in step.board]
    rows = [["share", *(f"{name}: {len(steps)} steps" for name, steps in groups.items()), f"Lambda's {len(lambdas)}"]]
    for share in (None, *SHARES):
        costs = replace(EFFICIENCY, sustained={} if share is None else {"h100": share})
        cells = ["none" if share is None else f"{share}"]
        for steps in groups.values():
            measured = np.array([step.measured_ms for step in steps])
            found = np.array([predicted_ms(step, BOARDS[step.board], costs) for step in steps])
            cells.append(", ".join(summary(found / measured, measured)[:3]))
        measured = np.array([step.measured_ms for step in lambdas])
        found = np.array(
            [
                sum(alone_ms(held_out_steps.BOARDS[step.board], costs, graph))
                for step in lambdas
                for graph in [captured(f"{step.model}_b{step.batch}", step.precision, False, config.out / "graphs")]
            ]
        )
        rows.append([*cells, ", ".join(summary(found / measured, measured)[:3])])
    print("Median error, median factor and worst factor of steps, by the largest share of the peak on an H100:\n")
    print(markdown(rows))


if __name__ == "__main__":
    command(main, Sustained, "sustained", __doc__)
