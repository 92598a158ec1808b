"""Trains the replicas of plan.json, which lies beside this file: torchrun --nproc-per-node RANKS run.py

A replica is one rank, or a tensor-parallel group of several, whose layers are sharded as the factory says. Replicas
take micro-batches of each batch, and sum their gradients. They share out the optimizer's state
(ZeroRedundancyOptimizer), or also gradients and weights (FSDP), as the plan says. To train on your own data, change
`batches` in training.py. With --check, each rank also trains the whole model, and says by how much the two differ.

`placeto export --format torch-replicas` has written this file. It needs torch (2.13) alone: change it as you like.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map

from placeto.formats.exports.torch_cut import recomputing
from placeto.formats.exports.torch_run import (
    OfTensors,
    arguments,
    batches,
    find_loss,
    part,
    random_state,
    started,
    tensors_of,
)
from placeto.plumbing.parallel_plan import apply_plan

HERE = Path(__file__).parent
OPTIMIZER_SHARDED, FULLY_SHARDED = 1, 3  # stages of ZeRO


def main() -> None:
    """Build the model, shard it, and train it."""
    given, plan = arguments(), json.loads((HERE / "plan.json").read_text())
    taken, width, sharding = plan["micro_batches"], plan["width"], plan["sharding"]
    device, (module, inputs, *rest) = started(given, plan, len(taken) * width)
    mesh = init_device_mesh(device.type, (len(taken), width), mesh_dim_names=("replicas", "group"))
    replicas, number = mesh["replicas"], mesh.get_local_rank("replicas")
    loss = find_loss(plan["loss"]) if plan["loss"] else rest[0] if rest else None
    targets = rest[1] if len(rest) > 1 else ()
    length = next(len(leaf) for leaf in tensors_of((inputs, targets)) if leaf.dim() > 0)
    count = sum(map(len, taken))
    if length != plan["batch"] or length % count:
        sys.exit(
            f"error: the plan is for a batch of {plan['batch']} in {count} micro-batches, not of {length}: plan it"
        )
    whole = copy.deepcopy(module).to(device) if given.check else None
    if width > 1:
        try:
            apply_plan(module.to(device), (rest[2] if len(rest) > 2 else None) or module.tp_plan or {}, mesh["group"])
        except (AttributeError, ValueError) as problem:
            sys.exit(f"error: groups of {width} need a parallel plan of the model: {problem}")
    try:
        recomputing([module.get_submodule(path) for path in plan["recomputed"]])
    except AttributeError as problem:
        sys.exit(f"error: the plan is for another model: {problem}")
    if sharding > OPTIMIZER_SHARDED:
        for unit in (*units(module), module):  # each moves to the device when it is sharded
            fully_shard(unit, mesh=replicas, reshard_after_forward=sharding == FULLY_SHARDED)
    module = module.to(device)

    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    kind = getattr(torch.optim, given.optimizer)
    if sharding == OPTIMIZER_SHARDED:
        from torch.distributed.optim import ZeroRedundancyOptimizer  # which loads much else

        group = replicas.get_group()
        optimizer: Any = ZeroRedundancyOptimizer(trained, optimizer_class=kind, process_group=group, lr=given.lr)
    else:
        optimizer = kind(trained, lr=given.lr)
    beside = kind(whole.parameters(), lr=given.lr) if whole else None
    rows = torch.arange(length).chunk(count)

    for step, (batch, wanted) in zip(range(given.steps), batches(inputs, targets), strict=False):
        start = time.perf_counter()
        optimizer.zero_grad()
        before = random_state(device)
        mean = torch.zeros((), device=device)
        for micro_batch in taken[number]:
            try:
                value = loss_of(module, loss, batch, wanted, rows[micro_batch], length, device) / count
            except RuntimeError as problem:
                if "mixed torch.Tensor and DTensor" not in str(problem):
                    raise
                sys.exit(
                    "error: a weight is read while its block isn't being called, and FSDP gathers the weights of a "
                    "block only then: call the block itself, as in x = block(x), and read its weights inside"
                )
            (value * len(taken) if isinstance(module, FSDPModule) else value).backward()  # FSDP takes the mean
            mean += value.detach()
        drawn = not torch.equal(before, random_state(device))
        if not isinstance(module, FSDPModule):
            sum_gradients(trained, replicas)
        dist.all_reduce(mean, group=replicas.get_group())
        text = f"step {step}: loss {mean.item():.6g}, {1e3 * (time.perf_counter() - start):.1f} ms"
        if whole is not None and beside is not None:
            beside.zero_grad()
            expected = 0.0
            for of in rows:
                value = loss_of(whole, loss, batch, wanted, of, length, device) / count
                value.backward()
                expected += value.item()
            text += f"; whole model: loss {expected:.6g}"
            if step == 0:
                compare(module, whole, drawn)
            beside.step()
        if dist.get_rank() == 0:
            print(text, flush=True)
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


def loss_of(
    module: nn.Module, loss: Any, inputs: Any, targets: Any, rows: Tensor, length: int, device: torch.device
) -> Tensor:
    """Return the loss of a micro-batch: if there is no function for it, what the module returns, or its ``loss``."""

    def on_device(tree: Any) -> Any:
        return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, part(tree, rows, length))

    model = OfTensors(module, inputs)
    output = model.output.whole(model(*tensors_of(on_device(inputs))))
    output = tree_map(lambda leaf: leaf.full_tensor() if isinstance(leaf, DTensor) else leaf, output)
    if loss is not None:
        return loss(output, *on_device(tuple(targets)))
    return output.get("loss", output) if isinstance(output, Mapping) else getattr(output, "loss", output)


def units(module: nn.Module, in_list: bool = False) -> Iterator[nn.Module]:
    """Yield the blocks of a model: the outermost modules of lists, such as layers.0, or of containers in lists."""
    for name, child in module.named_children():
        number = in_list or name.isdigit()
        is_called = type(child).forward is not nn.Module.forward  # containers, such as lists, have none of their own
        if number and is_called and any(True for _ in child.parameters()):
            yield child
        else:
            yield from units(child, number and not is_called)


def sum_gradients(trained: Iterable[nn.Parameter], replicas: DeviceMesh) -> None:
    """Add up the gradients of all replicas; each rank of a group adds its own shards."""
    for parameter in trained:
        if parameter.grad is not None:
            gradient = parameter.grad
            dist.all_reduce(
                gradient.to_local() if isinstance(gradient, DTensor) else gradient, group=replicas.get_group()
            )


def compare(module: nn.Module, whole: nn.Module, drawn: bool) -> None:
    """Print by how much gradients differ from those of the whole model at most."""
    others, apart = dict(whole.named_parameters()), list[float]()
    for name, parameter in module.named_parameters():
        gradient, expected = parameter.grad, others[name].grad
        if isinstance(gradient, DTensor):
            gradient = gradient.full_tensor()
        present = [each.to_dense() for each in (gradient, expected) if each is not None]
        if present:
            apart.append(float((present[0] - present[1] if len(present) == 2 else present[0]).abs().max()))
    off = torch.tensor([0.0, *apart], device=next(whole.parameters()).device).max()
    dist.all_reduce(off, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        if drawn:
            print(
                "note: the model draws random numbers, as for dropout; ranks draw other ones than the whole model, so "
                "that gradients and losses differ: check with dropout 0"
            )
        print(f"model: {len(apart)} gradients, off by {off.item():.2g} at most")


if __name__ == "__main__":
    main()
