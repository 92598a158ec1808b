"""Trains the replicas of plan.json, which lies beside this file: torchrun --nproc-per-node RANKS run.py

A replica is one rank, or a tensor-parallel group of several, whose layers are sharded as the factory says. Replicas
take micro-batches of each batch, and sum their gradients. They share out the optimizer's state
(ZeroRedundancyOptimizer), or also gradients and weights (FSDP), as the plan says. To train on your own data, change
`batches` in training.py. With --check, each rank also trains the whole model, and says by how much the two differ.

`placeto export --format torch-replicas` has written this file. It needs torch (2.13) alone: change it as you like.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from placeto.formats.exports.torch_cut import recomputing
from placeto.formats.exports.torch_run import OfTensors, Whole, arguments, batches, loss_of, optimizer_of, started
from placeto.plumbing.parallel_plan import apply_plan

HERE = Path(__file__).parent
OPTIMIZER_SHARDED, FULLY_SHARDED = 1, 3  # stages of ZeRO


def main() -> None:
    """Build the model, shard it, and train it."""
    given, plan = arguments(), json.loads((HERE / "plan.json").read_text())
    taken, width, sharding = plan["micro_batches"], plan["width"], plan["sharding"]
    made = started(given, plan, len(taken) * width)
    device, length, module = made.device, made.length, made.module
    mesh = init_device_mesh(device.type, (len(taken), width), mesh_dim_names=("replicas", "group"))
    replicas, number = mesh["replicas"], mesh.get_local_rank("replicas")
    count = sum(map(len, taken))
    if length != plan["batch"] or length % count:
        sys.exit(
            f"error: the plan is for a batch of {plan['batch']} in {count} micro-batches, not of {length}: plan it"
        )
    kind = getattr(torch.optim, given.optimizer)
    whole = Whole(made, kind, given.lr, count) if given.check else None
    if width > 1:
        try:
            apply_plan(module.to(device), made.parallel or module.tp_plan or {}, mesh["group"])
        except (AttributeError, ValueError) as problem:
            sys.exit(f"error: groups of {width} need a parallel plan of the model: {problem}")
    try:
        recomputing([module.get_submodule(path) for path in plan["recomputed"]])
    except AttributeError as problem:
        sys.exit(f"error: the plan is for another model: {problem}")
    if sharding > OPTIMIZER_SHARDED:
        for unit in (*units(module), module):  # each moves to the device when it is sharded
            fully_shard(unit, mesh=replicas, reshard_after_forward=sharding == FULLY_SHARDED)
    made = made._replace(module=module.to(device))

    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    group = replicas.get_group()
    optimizer = optimizer_of(trained, kind, given.lr, group if sharding == OPTIMIZER_SHARDED else None)
    rows = torch.arange(length).chunk(count)

    for step, (batch, wanted) in zip(range(given.steps), batches(made.inputs, made.targets), strict=False):
        start = time.perf_counter()
        optimizer.zero_grad()
        mean = torch.zeros((), device=device)
        for micro_batch in taken[number]:
            try:
                value = loss_of(made, batch, wanted, rows[micro_batch]) / count
            except RuntimeError as problem:
                if "mixed torch.Tensor and DTensor" not in str(problem):
                    raise
                sys.exit(
                    "error: a weight is read while its block isn't being called, and FSDP gathers the weights of a "
                    "block only then: call the block itself, as in x = block(x), and read its weights inside"
                )
            (value * len(taken) if isinstance(module, FSDPModule) else value).backward()  # FSDP takes the mean
            mean += value.detach()
        if not isinstance(module, FSDPModule):
            sum_gradients(trained, group)
        dist.all_reduce(mean, group=group)
        text = f"step {step}: loss {mean.item():.6g}, {1e3 * (time.perf_counter() - start):.1f} ms"
        if whole is not None:
            text += f"; whole model: loss {whole.trained(batch, wanted):.6g}"
            if step == 0:
                whole.compare([("model", OfTensors(module, ()), None)])
        if dist.get_rank() == 0:
            print(text, flush=True)
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


def units(module: nn.Module, in_list: bool = False) -> Iterator[nn.Module]:
    """Yield the blocks of a model: the outermost modules of lists, such as layers.0, or of containers in lists."""
    for name, child in module.named_children():
        number = in_list or name.isdigit()
        is_called = type(child).forward is not nn.Module.forward  # containers, such as lists, have none of their own
        if number and is_called and any(True for _ in child.parameters()):
            yield child
        else:
            yield from units(child, number and not is_called)


def sum_gradients(trained: Iterable[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Add up the gradients of all replicas; each rank of a group adds its own shards."""
    for parameter in trained:
        if parameter.grad is not None:
            gradient = parameter.grad
            dist.all_reduce(gradient.to_local() if isinstance(gradient, DTensor) else gradient, group=group)


if __name__ == "__main__":
    main()
