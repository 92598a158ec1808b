"""Models that torch runs in the stages of `pipeline_stages`, a process for each stage; a line of JSON for each model.

``python -m tests.formats.piped RANK STAGES FOLDER 'MODEL SPLIT ...' ...``
"""

import copy
import json
import logging
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline

from tests.formats.divided import linears


class Chain(nn.Module):
    """Layers in a module of a module, with a table that all of them read."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Module(), nn.LayerNorm(8)
        self.body.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))
        self.register_buffer("table", torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body.layers:  # type: ignore[union-attr]
            x = layer(x) * self.table
        return self.norm(x)


class Skip(nn.Module):
    """What the first layer gives is read by the last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(8, 8), linears(4), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = y = self.first(x)
        for block in self.blocks:
            y = block(y).tanh()
        return self.last(x + y)


class Tied(nn.Module):
    """The first two layers share a weight, across another one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.mid, self.other, self.rest = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), linears(1)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.rest[0](self.other(self.mid(self.one(x)).tanh()))


class Twice(nn.Module):
    """A layer that is called twice, and an activation in many places."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.act = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.act(self.a(self.act(self.b(self.act(self.a(x)))))))


class Borrowed(nn.Module):
    """The last layer's weight is read by the model itself, early, and its bias at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mid, self.last = nn.Linear(8, 8), linears(2), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mid[0](self.first(x) @ self.last.weight)
        return self.mid[1](x.tanh())


MODELS = {kind.__name__: kind for kind in (Chain, Skip, Tied, Twice, Borrowed)}


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def piped(rank: int, last: int, name: str, *split: str) -> dict[str, object]:
    """How this process's stage compares with the whole model."""
    torch.manual_seed(0)
    model, x, target = MODELS[name](), torch.randn(4, 8), torch.randn(4, 8)
    whole = copy.deepcopy(model)
    expected = whole(x)
    loss(expected, target).backward()
    pipe = pipeline(model, mb_args=(x[:2],), split_spec=dict.fromkeys(split, SplitPoint.BEGINNING))
    stage = pipe.build_stage(rank, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=loss)
    output = schedule.step(*([] if rank else [x]), **({"target": target} if rank == last else {}))
    gradients = {path: parameter.grad for path, parameter in whole.named_parameters(remove_duplicate=False)}
    mine = dict(stage.submod.named_parameters())
    wrong = [
        path
        for path, parameter in mine.items()
        if parameter.grad is None or not torch.allclose(parameter.grad, gradients[path], atol=1e-6)  # type: ignore[arg-type]
    ]
    same = rank < last or torch.allclose(output, expected, atol=1e-6)
    return {"name": name, "stages": pipe.num_stages, "trains": sorted(mine), "wrong": wrong, "same": same}


def main() -> None:
    logging.disable()
    torch.set_num_threads(1)
    rank, count, folder, *given = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=int(rank), world_size=int(count))
    for one in given:
        print(json.dumps(piped(int(rank), int(count) - 1, *one.split())), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
