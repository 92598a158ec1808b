"""Trains a model in the pipeline of plan.json, which lies beside this file: torchrun --nproc-per-node RANKS run.py

Each rank builds the whole model, cuts it into stages, and keeps its own stages. torch.distributed.pipelining runs them
in the order of schedule-R.csv, where R is the number of the replica. After a step the replicas of a stage average their
gradients. To train on your own data, change `batches`. With --check, each rank also trains the whole model, and prints
by how much the two differ.

`placeto export --format torch-pipeline` has written this file. It needs torch (2.13) alone: change it as you like.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining.microbatch import TensorChunkSpec, _Replicate
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from placeto.formats.exports.torch_cut import compiled, made_by, recomputing, stages_of, taken_by

HERE = Path(__file__).parent


def batches(inputs: Any, targets: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the inputs and targets of each step: the batches of all replicas together, in the shapes of the factory's.

    Replace the body to train on your data.
    """
    while True:
        yield inputs, targets


def find(name: str) -> Callable[..., Any]:
    """Return the function that file.py:function or package.module:function names.

    For file.py:function(depth=4), it is the function with these arguments already given.
    """
    where, _, call = name.rpartition(":") if "(" not in name else name.partition("(")[0].rpartition(":")
    call += name[name.index("(") :] if "(" in name else ""
    if where.endswith(".py"):
        if not Path(where).is_file():
            sys.exit(f"error: {name}: there is no file {where} in {Path.cwd()}: go where it is, or give --factory")
        sys.path.insert(0, str(Path(where).absolute().parent))
        spec = spec_from_file_location(Path(where).stem, where)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, str(Path.cwd()))
        module = import_module(where)
    node = ast.parse(call, mode="eval").body
    if not isinstance(node, ast.Call):
        return getattr(module, call)
    function = getattr(module, ast.unparse(node.func))
    positional = [ast.literal_eval(argument) for argument in node.args]
    named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    return lambda **more: function(*positional, **named, **more)


def find_loss(name: str) -> Callable[..., Any]:
    """Return the loss of a name that `placeto` takes as --loss, such as cross_entropy, mean or file.py:function."""
    if ":" in name:
        return find(name)
    if name in ("sum", "mean"):
        return lambda output, *targets: getattr(torch, name)(output)
    return getattr(nn.functional, name)


class Output:
    """The structure of what a model returns. Stages return its tensors alone; `whole` puts them back into it."""

    def __init__(self) -> None:
        self.leaves: list[Any] = []
        self.places: list[int] = []  # places of the tensors among the leaves
        self.spec: Any = None

    def taken_apart(self, output: Any) -> Any:
        """Return the tensors of an output in order, or the tensor itself if there is only one; keep all else."""
        leaves, self.spec = tree_flatten(output)
        self.places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        tensors = tuple(leaves[place] for place in self.places)
        return tensors[0] if len(tensors) == 1 else tensors

    def whole(self, tensors: Any) -> Any:
        """Return the output as the model gave it, with these tensors in it."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, [tensors] if isinstance(tensors, Tensor) else tensors, strict=True):
            leaves[place] = tensor
        return tree_unflatten(leaves, self.spec)


class OfTensors(nn.Module):
    """A model that takes and returns only tensors; all other inputs stay as they were in the first batch."""

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        super().__init__()
        self.model, self.output = model, Output()
        self.leaves, self.spec = tree_flatten(inputs if isinstance(inputs, Tensor | Mapping) else tuple(inputs))

    def forward(self, *tensors: Tensor) -> Any:
        """Return the tensors that the model returns."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        inputs = tree_unflatten(leaves, self.spec)
        if isinstance(inputs, Tensor):
            return self.output.taken_apart(self.model(inputs))
        made = self.model(**inputs) if isinstance(inputs, Mapping) else self.model(*inputs)
        return self.output.taken_apart(made)


def tensors_of(inputs: Any) -> list[Tensor]:
    """Return all tensors of nested inputs, in order."""
    return [leaf for leaf in tree_flatten(inputs)[0] if isinstance(leaf, Tensor)]


def part(tree: Any, rows: Tensor, length: int) -> Any:
    """Return the tree with only these rows of tensors that are as long as the batch, and all else as it is."""

    def of(leaf: Any) -> Any:
        split = isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == length
        return leaf[rows.to(leaf.device)] if split else leaf

    return tree_map(of, tree)


def on_device(tree: Any, device: torch.device) -> Any:
    """Return the tree with its tensors on a device."""
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tree)


def copied(_: nn.Module, __: Any, output: Any) -> Any:
    """Return the output of a stage with contiguous tensors, as torch can send no others; copy those with a gradient.

    torch detaches these in place, which fails for views and for tensors that are saved for the backward pass.
    """

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.clone(memory_format=torch.contiguous_format) if leaf.requires_grad else leaf.contiguous()

    return tree_map(of, output)


def received(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs of a stage, as copies if they have gradients; the gradients become contiguous, to be sent."""
    return tuple(_WithSentGradient.apply(leaf) if leaf.requires_grad else leaf for leaf in given)


class _WithSentGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()  # the stage may begin with a change in place

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous()


def between_ranks(operations: Callable[[], list[Any]], rank: int) -> list[Any]:
    """Return the operations that send to, or receive from, other ranks than this one."""
    return [each for each in operations() if each.group_peer != rank]


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Trains a model in the pipeline of plan.json.")
    parser.add_argument("--factory", help="file.py:function that makes the model; that of plan.json if not given")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--optimizer", default="Adam", help="a class of torch.optim")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0, help="all ranks begin with the same weights")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--check", action="store_true", help="train the whole model beside, on each rank")
    return parser.parse_args()


class Step(NamedTuple):
    """What the factory makes, which is the same on all ranks."""

    device: torch.device  # of this rank
    length: int  # samples of a batch
    module: Any
    inputs: Any
    loss: Any
    targets: Any
    parallel: Any  # the tensor-parallel plan of the module, if there is one


def started(given: argparse.Namespace, plan: dict[str, Any], ranks: int) -> Step:
    """Join the process group, and call the factory."""
    if int(os.environ.get("WORLD_SIZE", "0")) != ranks:
        sys.exit(f"error: the plan is for {ranks} ranks: torchrun --standalone --nproc-per-node {ranks} {sys.argv[0]}")
    factory = given.factory or plan["factory"]
    if factory is None:
        sys.exit("error: the plan was exported without its model: give --factory file.py:function")
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if given.device == "cuda" else given.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(given.seed)
    random.seed(given.seed)
    with suppress(ImportError):
        import numpy as np

        np.random.seed(given.seed)
    module, inputs, *rest = find(factory)(**plan["settings"])
    loss, targets, parallel = rest + list[Any]((None, (), None))[len(rest) :]
    if any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers(), *tensors_of((inputs, targets)))):
        sys.exit(f'error: {factory}: makes tensors on "meta", which can\'t be run: build the model without that device')
    length = next(len(leaf) for leaf in tensors_of((inputs, targets)) if leaf.dim() > 0)
    return Step(device, length, module, inputs, find_loss(plan["loss"]) if plan["loss"] else loss, targets, parallel)


def main() -> None:
    """Build the model, cut it into stages, and train it."""
    given, plan = arguments(), json.loads((HERE / "plan.json").read_text())
    made = started(given, plan, sum(len(replica["ranks"]) for replica in plan["replicas"]))
    rank, kind = dist.get_rank(), getattr(torch.optim, given.optimizer)
    device, length, module, inputs, loss, targets, _ = made
    size = length // plan["micro_batches"]
    whole = Whole(made, kind, given.lr, plan["micro_batches"]) if given.check else None
    model = OfTensors(module, inputs)
    cut = stages_of(model, tensors_of(part(inputs, torch.arange(size), length)), plan)
    taken, given_back = taken_by(cut), made_by(cut)

    # Groups: the ranks of a replica, in the order of the rows of its schedule, and those of a stage, of all replicas.
    of_replica = [dist.new_group(replica["ranks"]) for replica in plan["replicas"]]
    of_stage = [dist.new_group(sorted(row)) for row in zip(*(r["stages"] for r in plan["replicas"]), strict=True)]
    number = next(i for i, replica in enumerate(plan["replicas"]) if rank in replica["ranks"])
    mine = plan["replicas"][number]
    stages = [
        cut.build_stage(stage, device, of_replica[number]) for stage, at in enumerate(mine["stages"]) if at == rank
    ]
    returned = model.output
    del cut, model, module, made
    now: dict[str, Any] = {}

    def loss_of_rows(output: Any, rows: Tensor) -> Tensor:
        """Return the loss of a micro-batch; torch passes the numbers of its rows in place of targets."""
        tensors = [output] if isinstance(output, Tensor) else output
        return loss(returned.whole([tensors[place] for place in given_back]), *part(now["targets"], rows, length))

    sizes = [tuple(tensors_of(inputs)[place].shape[:1]) for place in taken]
    schedule = _PipelineScheduleRuntime(
        stages,
        len(mine["micro_batches"]),
        loss_fn=loss_of_rows,
        args_chunk_spec=tuple(TensorChunkSpec(0) if size == (length,) else _Replicate() for size in sizes),
        scale_grads=False,
    )
    schedule._load_csv(str(HERE / mine["schedule"]))
    for stage in stages:
        # torch 2.13 sends a first tensor to neighbouring stages, even if they are on the rank itself, which gloo can't
        stage._get_init_p2p_neighbors_ops = partial(between_ranks, stage._get_init_p2p_neighbors_ops, stage.group_rank)
        compiled(stage.submod, device)
        again = {f"model.{path}" for path in plan["recomputed"]}
        recomputing(block for path, block in stage.submod.named_modules() if path in again)
        stage.submod.register_forward_pre_hook(received)
        stage.submod.register_forward_hook(copied)
    of_sharded = {stage: of_stage[stage] for stage in plan["optimizer_sharded"]}
    optimizers = [
        optimizer_of(own, kind, given.lr, of_sharded.get(stage.stage_index))
        for stage in stages
        if (own := [parameter for parameter in stage.submod.parameters() if parameter.requires_grad])
    ]
    rows = torch.cat([torch.arange(of * size, (of + 1) * size) for of in mine["micro_batches"]])

    for step, (batch, wanted) in zip(range(given.steps), batches(inputs, targets), strict=False):
        start = time.perf_counter()
        now["targets"] = on_device(tuple(wanted), device)
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses: list[Tensor] = []
        first, last = any(stage.is_first for stage in stages), any(stage.is_last for stage in stages)
        own = tensors_of(part(batch, rows, length))
        args = [own[place].to(device) for place in taken] if first else []
        schedule.step(*args, target=rows if last else None, losses=losses, return_outputs=False)
        sums = [
            (parameter.grad, dist.all_reduce(parameter.grad, group=of_stage[stage.stage_index], async_op=True))
            for stage in stages
            for parameter in stage.submod.parameters()
            if parameter.grad is not None
        ]
        for gradient, done in sums:
            done.wait()
            gradient /= plan["micro_batches"]
        mean = torch.stack(losses).mean().detach() if last else torch.zeros(())
        if last:
            dist.all_reduce(mean, group=of_stage[-1])
            mean /= len(plan["replicas"])
        text = f"step {step}: loss {mean.item():.6g}, {1e3 * (time.perf_counter() - start):.1f} ms"
        if whole is not None:
            text += f"; whole model: loss {whole.trained(batch, now['targets']):.6g}"
            if step == 0:
                whole.compare((f"stage {each.stage_index}", each.submod, of_stage[each.stage_index]) for each in stages)
        if last and rank == plan["replicas"][0]["stages"][-1]:
            print(text, flush=True)
        for optimizer in optimizers:
            optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


def optimizer_of(trained: list[nn.Parameter], kind: Any, lr: float, group: Any) -> Any:
    """Return an optimizer; the ranks of a group, if there is one, share out its state."""
    if group is None:
        return kind(trained, lr=lr)
    from torch.distributed.optim import ZeroRedundancyOptimizer  # which loads much else

    return ZeroRedundancyOptimizer(trained, optimizer_class=kind, process_group=group, lr=lr)


def loss_of(step: Step, inputs: Any, targets: Any, rows: Tensor) -> Tensor:
    """Return the loss of a micro-batch: if there is no function for it, what the module returns, or its ``loss``."""
    model = OfTensors(step.module, inputs)
    output = model.output.whole(model(*tensors_of(on_device(part(inputs, rows, step.length), step.device))))
    output = tree_map(lambda leaf: leaf.full_tensor() if isinstance(leaf, DTensor) else leaf, output)
    if step.loss is not None:
        return step.loss(output, *on_device(part(tuple(targets), rows, step.length), step.device))
    return output.get("loss", output) if isinstance(output, Mapping) else getattr(output, "loss", output)


class Whole:
    """The whole model, which each rank trains beside its part to compare the two."""

    def __init__(self, step: Step, kind: Any, lr: float, count: int) -> None:
        self.step, self.count = step._replace(module=copy.deepcopy(step.module).to(step.device)), count
        self.optimizer = kind(self.step.module.parameters(), lr=lr)
        self.draws = False  # whether the model draws random numbers

    def trained(self, inputs: Any, targets: Any) -> float:
        """Train for a step, and return the loss.

        Loss and gradients are sums over micro-batches that are divided at the end, as in the pipeline, so that both are
        rounded alike.
        """
        total, before = 0.0, random_state(self.step.device)
        self.optimizer.zero_grad()
        for rows in torch.arange(self.step.length).chunk(self.count):
            value = loss_of(self.step, inputs, targets, rows)
            value.backward()
            total += value.item()
        for parameter in self.step.module.parameters():
            if parameter.grad is not None:
                parameter.grad /= self.count
        self.optimizer.step()
        self.draws = not torch.equal(before, random_state(self.step.device))
        return total / self.count

    def compare(self, parts: Iterable[tuple[str, nn.Module, Any]]) -> None:
        """Let the first rank of each part's group print by how much the part's gradients are off at most."""
        if self.draws and dist.get_rank() == 0:
            print(
                "note: the model draws random numbers, as for dropout; ranks draw other ones than the whole model, so "
                "that gradients and losses differ: check with dropout 0"
            )
        of_whole = dict(OfTensors(self.step.module, ()).named_parameters(remove_duplicate=False))
        for name, module, group in parts:
            both = [(p.grad, of_whole[path].grad) for path, p in module.named_parameters()]
            apart = [_largest_difference(*pair) for pair in both if pair[0] is not None or pair[1] is not None]
            off = torch.tensor([0.0, *apart], device=self.step.device).max()
            dist.all_reduce(off, dist.ReduceOp.MAX, group=group)
            if dist.get_rank(group) == 0:
                print(f"{name}: {len(apart)} gradients, off by {off.item():.2g} at most")


def _largest_difference(*gradients: Tensor | None) -> float:
    """Return by how much two gradients differ at most; a missing one is 0."""
    known = [g.full_tensor() if isinstance(g, DTensor) else g.to_dense() for g in gradients if g is not None]
    return float((known[0] - known[1] if len(known) == 2 else known[0]).abs().max())


def random_state(device: torch.device) -> Tensor:
    """Return the state of torch's random generator on a device, which each draw changes."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


if __name__ == "__main__":
    main()
