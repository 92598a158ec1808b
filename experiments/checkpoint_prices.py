"""What do activation checkpoints cost and save: are measured prices predicted?

python -m experiments.checkpoint_prices [--results FILE]

A Llama of 7 billion parameters is trained in bf16 by FSDP on eight H100, with eight sequences of 2,048 words on each,
in eager PyTorch. Measured are the peak of active memory, and words per second on a GPU, with all blocks recomputed, and
with attention and every second matrix product of a block kept: pytorch/torchtitan, pull request 135 (2024), without
torch.compile. Of a span, such as 6,100 to 6,300 words, the middle is taken. Two facts are taken from elsewhere. The
model is that of pull request 97, some weeks earlier, since 135 names none. "Every second product" is torchtitan's rule
of later versions. The row in which all products are kept shows how much this rule decides. Steps in which nothing is
recomputed were not published.

Other published pairs can't be simulated: they use tensor or expert parallelism (torchtitan 2570, Megatron-Bridge), move
activations to the host (torchtitan 4636), or let a compiler choose what is computed again (pytorch 197838, OLMo-core
297, the compiled steps of torchtitan 135). Torchtitan 97 doesn't say the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from experiments.command import command
from experiments.tables import markdown, publish
from graphs import llama
from placeto.capture.trace import capture_training
from placeto.planning.planned_steps import PlannedStep
from placeto.planning.single_ways import sharded
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem

GPUS, BATCH, LENGTH = 8, 8, 2048
"""BATCH sequences on each GPU."""
MEASURED = {"all": (6200.0, 22.7), "selective": (6700.0, 49.5)}
"""Words per second on a GPU, and GiB."""
aten = torch.ops.aten
ATTENTION = {
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
}


@dataclass(frozen=True)
class CheckpointPrices:
    """Predict what checkpoints cost and save."""

    out: Path = Path("runs/checkpoint_prices")
    """folder for the table"""
    layers: int = llama.LLAMA_7B.layers
    """of the model; the measured one has 32"""


def selective(every: int) -> tuple[Any, Any]:
    """Contexts of a checkpoint that keeps attention, and of each `every` matrix products the first."""
    products = {False: 0, True: 0}  # seen in the forward pass, and while it is computed again

    def policy(context: Any, op: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
        product = op == aten.mm.default
        products[context.is_recompute] += product
        kept = op in ATTENTION or (product and (products[context.is_recompute] - 1) % every == 0)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


WRAPPED: dict[str, Callable[..., Any] | None] = {
    "nothing": None,
    "all but attention and products": partial(checkpoint, use_reentrant=False, context_fn=partial(selective, 1)),
    "selective": partial(checkpoint, use_reentrant=False, context_fn=partial(selective, 2)),
    "all": partial(checkpoint, use_reentrant=False),
}
"""What calls a block."""


def simulated(recomputed: str, layers: int) -> PlannedStep:
    """The step by FSDP, with some of it recomputed."""
    with torch.device("meta"):
        size = replace(llama.LLAMA_7B, layers=layers)
        step = llama.training_step(llama.Network(size, LENGTH, GPUS * BATCH))
    if (call := WRAPPED[recomputed]) is not None:
        for layer in step.module.get_submodule("layers").children():
            layer.forward = partial(call, layer.forward)
    graph = capture_training(
        step.module, step.inputs, step.loss, targets=step.targets, precision="bf16", micro_batches=GPUS
    )
    return sharded(PlacementProblem(graph, load_cluster(f"{GPUS}xh100")), tuple(range(GPUS)), 3)


def main(config: CheckpointPrices) -> None:
    """Simulate, print."""
    config.out.mkdir(parents=True, exist_ok=True)
    steps = {name: simulated(name, config.layers) for name in WRAPPED}
    found = {name: (1e6 * BATCH * LENGTH / step.step_us, step.used / 2**30) for name, step in steps.items()}
    lines = [["recomputed", "words/s on a GPU, simulated", "measured", "GiB, simulated", "measured"]]
    for name, (words, size) in found.items():
        measured = MEASURED.get(name)
        was = (f"{measured[0]:,.0f}", f"{measured[1]:.1f}") if measured else ("-", "-")
        lines.append([name, f"{words:,.0f}", was[0], f"{size:.1f}", was[1]])
    prices = [
        f"{100.0 * (words['selective'][0] / words['all'][0] - 1.0):.1f} % more words a second for "
        f"{words['selective'][1] - words['all'][1]:.1f} GiB"
        for words in (found, MEASURED)
    ]
    text = f"Selective in place of all: simulated {prices[0]}, measured {prices[1]}."
    publish(config.out, "checkpoint_prices", [text, markdown(lines)], None)


if __name__ == "__main__":
    command(main, CheckpointPrices, "checkpoint_prices", __doc__)
