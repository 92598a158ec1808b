"""Compares the ways to train a model on some devices, and trains it in the best pipeline, with torchrun.

    python examples/plan_and_run_a_pipeline.py

The plan is simulated for the cluster. The run is on this machine: one process for each device of the plan, on GPUs if
there are enough, else on CPU cores. With --check each process also trains the whole model, and compares the gradients.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import placeto
from placeto.formats.exports import save_torch_pipeline, torch_pipeline


class Block(nn.Module):
    """A residual block of two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(B, width) -> (B, width)."""
        return x + self.layers(x)


Made = tuple[nn.Module, list[Tensor], Callable[..., Tensor], list[Tensor]]


def make(blocks: int = 6, width: int = 512, batch: int = 256) -> Made:
    """Model, inputs, loss and targets; each process of the run calls this function."""
    model = nn.Sequential(*(Block(width) for _ in range(blocks)), nn.Linear(width, 10))
    return model, [torch.randn(batch, width)], nn.functional.cross_entropy, [torch.randint(10, (batch,))]


def main(cluster: str, micro_batches: list[int], folder: Path, steps: int) -> str:
    """Print the plans, export the best pipeline and train it; returns what the training printed."""
    with torch.device("meta"):
        model, inputs, loss, targets = make()
    plans = placeto.plan(
        model,
        inputs,
        cluster=cluster,
        loss=loss,
        targets=targets,
        micro_batches=micro_batches,
        simulations=0,  # no free placement is sought: torchrun couldn't run it
        runnable_by="torch",
    )
    print(plans, plans.advice(), sep="\n")
    pipeline = next(step for step in plans.steps if "pipeline" in step.kind)
    made = torch_pipeline(pipeline.placed)
    save_torch_pipeline(made, folder, f"{Path(__file__).resolve()}:make")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(made.num_ranks)]
    command += [str(folder / "run.py"), "--steps", str(steps), "--check"]
    print(*command)
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(ran.stdout)
    return ran.stdout


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", default="2xv100", help="a name from `placeto list clusters`, or a file")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--folder", type=Path, default=Path("pipeline"))
    parser.add_argument("--steps", type=int, default=3)
    settings = parser.parse_args()
    main(settings.cluster, settings.micro_batches, settings.folder, settings.steps)
