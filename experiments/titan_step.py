"""A language model in the shape of torchtitan's, and a step of it in what was exported, by torchtitan's own code.

`other_tools` starts this file by torchrun, with the interpreter of an environment that has torchtitan (0.3):
``titan_step.py FOLDER``. Each rank says by how much the gradients of its stages differ from the whole model's.
"""

from __future__ import annotations

import copy
import re
import runpy
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

WORDS = 500


class Block(nn.Module):
    """A norm and a feed-forward network, added to what they read."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, H) to the same."""
        out: Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.norm(x))))
        return out


class Language(nn.Module):
    """An embedding, layers, a norm and a head, of which a stage may lack some, as torchtitan wants it."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.lm_head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T) words, or (B, T, H) of the stage before, to (B, T, words) or (B, T, H)."""
        for module in (self.tok_embeddings, *self.layers, self.norm, self.lm_head):
            x = module(x) if module is not None else x
        return x


def loss(output: Tensor, words: Tensor) -> Tensor:
    """The mean cross entropy of all words."""
    return nn.functional.cross_entropy(output.flatten(0, 1), words.flatten())


def net(layers: int = 8, width: int = 64, batch: int = 24) -> tuple[nn.Module, list[Tensor], Any, list[Tensor]]:
    """The factory."""
    words, wanted = (torch.randint(0, WORDS, (batch, 16)) for _ in range(2))
    return Language(layers, width), [words], loss, [wanted]


def main(folder: str) -> None:
    """A step, beside the whole model's."""
    titan: Any = import_module("torchtitan.distributed.pipeline_parallel")
    config: Any = import_module("torchtitan.config.configs")
    placed = runpy.run_path(f"{folder}/parallelism.py")["placed"]
    told = placed(SimpleNamespace(parallelism=config.ParallelismConfig(), training=SimpleNamespace()))
    parallelism, length = told.parallelism, told.training.local_batch_size
    dist.init_process_group("gloo")
    sizes = parallelism.pipeline_parallel_degree, parallelism.data_parallel_replicate_degree
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("pp", "dp_replicate"))
    torch.manual_seed(0)
    model, (words,), _, (wanted,) = net(batch=told.training.global_batch_size)
    whole, parts = copy.deepcopy(model), parallelism.module_fqns_per_model_part
    stages, modules = titan._pipeline_module_split(
        model, mesh["pp"], parallelism.pipeline_parallel_schedule, torch.device("cpu"), parts
    )
    schedule = titan._build_pipeline_schedule(
        parallelism=parallelism, local_batch_size=length, stages=stages, loss_fn=lambda y, t: (loss(y, t), None)
    )
    replica = mesh["dp_replicate"].get_local_rank()
    words, wanted = words[replica * length :][:length], wanted[replica * length :][:length]
    first, last = any(stage.is_first for stage in stages), any(stage.is_last for stage in stages)
    losses: list[Tensor] = []
    schedule.step(*([words] if first else []), target=wanted if last else None, losses=losses if last else None)
    for rows in torch.arange(length).split(parallelism.pipeline_parallel_microbatch_size):
        loss(whole(words[rows]), wanted[rows]).backward()
    expected = dict(whole.named_parameters())
    for stage, module in zip(stages, modules, strict=True):
        own = [name for name in parts[stage.stage_index] if name.startswith("layers.")]

        def full(name: str, own: list[str] = own) -> str:
            return re.sub(r"^layers\.(\d+)", lambda found: own[int(found[1])], name)

        apart = [
            float((parameter.grad - expected[full(name)].grad).abs().max())
            for name, parameter in module.named_parameters()
        ]
        print(f"stage {stage.stage_index}: {len(apart)} gradients, off by {max(apart):.2g} at most", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
