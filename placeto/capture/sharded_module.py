"""A module as one rank of a tensor-parallel group has it, so that its step can be captured without the other ranks.

The layers are sharded by the library that would run them: torch's `parallelize_module`, or the tensor parallelism of
transformers. Its collectives go to a process group that communicates with nobody, and become ops of the graph.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional_collectives
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import _disable_current_modes

from placeto.capture.inputs.input_checks import check_module
from placeto.capture.user_errors import explain
from placeto.errors import CaptureError
from placeto.plumbing.parallel_plan import apply_plan

ParallelPlan = Mapping[str, Any]
"""Path of a module, with `*` in place of any part -> its style: a `ParallelStyle` of torch or the name of one of
transformers."""
_HEADS = "num_attention_heads", "num_key_value_heads"


@contextmanager
def sharded(module: nn.Module, plan: ParallelPlan, width: int, name: str) -> Iterator[nn.Module]:
    """Yield a copy of a module on "meta" with what one of `width` ranks has of it; it can be called within the context.

    Args:
        module: the whole module, which is left as it is.
        plan: the styles of its modules.
        width: number of ranks of the group.
        name: the name of the graph, for messages.

    Raises:
        CaptureError: the plan and the module don't go together, `width` doesn't divide a size, or torch.distributed is
            in use.
    """
    check_module(module, name, training=True)
    if dist.is_initialized():
        raise CaptureError(
            f"{name}: a capture in groups of {width} needs a process group of its own, and this process is in one: "
            "capture before init_process_group, or in another process"
        )
    from torch.testing._internal.distributed.fake_pg import FakeStore

    memo = {id(tensor): _on_meta(tensor) for tensor in (*module.parameters(), *module.buffers())}
    try:
        module = copy.deepcopy(module, memo)
    except Exception as problem:  # whatever something in the module raises
        raise CaptureError(
            f"{name}: the module can't be copied, which groups of {width} need: {explain(problem)}"
        ) from None
    on_error = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=width)
    try:
        try:
            apply_plan(module, plan, dist.device_mesh.init_device_mesh("cpu", (width,)))
        except ValueError as problem:
            raise CaptureError(f"{name}: {problem}") from None
        _check_sizes(module, width, name)
        _hold_local_parameters(module)
        with _only_local_ops():
            yield module
    finally:
        dist.destroy_process_group()
        sys.excepthook = on_error  # which init_process_group has replaced


@contextmanager
def _only_local_ops() -> Iterator[None]:
    """A context in which a recorder sees the ops and collectives of one rank alone.

    DTensors also run the ops of all ranks together, to know their shapes, and these calls are no part of the step. And
    `torch.distributed.all_reduce` becomes the functional collective, which can be recorded.
    """
    shapes = ShardingPropagator._propagate_tensor_meta_non_cached

    def unseen(*args: Any) -> Any:
        with _disable_current_modes():
            return shapes(*args)

    with (
        patch.object(ShardingPropagator, shapes.__name__, unseen),
        patch.object(dist, "all_reduce", functional_collectives.all_reduce_inplace),
    ):
        yield


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    on_meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return nn.Parameter(on_meta, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else on_meta


def _check_sizes(module: nn.Module, width: int, name: str) -> None:
    """Refuse sizes that the width doesn't divide.

    Raises:
        CaptureError: there is one: a dimension that is sharded, or a number of heads.
    """
    config = getattr(module, "config", None)
    for key in _HEADS:
        if isinstance(heads := getattr(config, key, 0), int) and heads % width:
            raise CaptureError(f"{name}: {key} is {heads}, which groups of {width} don't divide")
    for path, parameter in module.named_parameters():
        for placement in parameter.placements if isinstance(parameter, DTensor) else ():
            dimension = getattr(placement, "dim", None)  # None if the parameter is whole on each rank
            if dimension is not None and parameter.shape[dimension] % width:
                sizes = " x ".join(map(str, parameter.shape))
                raise CaptureError(f"{name}: {path} has the sizes {sizes}, which groups of {width} don't divide")


def _hold_local_parameters(module: nn.Module) -> None:
    """Let each module hold the local parts of its DTensors, as a capture takes them, and compute with the DTensors."""
    local_parts = dict[int, nn.Parameter]()  # of each DTensor, which modules may share
    for part in module.modules():
        layouts = dict[str, Any]()
        for key, parameter in part._parameters.items():
            if isinstance(parameter, DTensor):
                layouts[key] = parameter.device_mesh, parameter.placements, parameter.shape, parameter.stride()
                local = nn.Parameter(parameter.to_local(), parameter.requires_grad)
                part._parameters[key] = local_parts.setdefault(id(parameter), local)
        if layouts:
            part.forward = _with_shards(part, part.forward, layouts)


def _with_shards(part: nn.Module, forward: Callable[..., Any], layouts: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a forward during which a module has DTensors of these layouts in place of its local parameters."""

    def with_shards(*args: Any, **kwargs: Any) -> Any:
        held: dict[str, Any] = part._parameters
        local = {key: held[key] for key in layouts}
        for key, (mesh, placements, shape, stride) in layouts.items():
            how: Any = {"run_check": False, "shape": shape, "stride": stride}
            held[key] = DTensor.from_local(local[key], mesh, placements, **how)
        try:
            return forward(*args, **kwargs)
        finally:
            held.update(local)

    return with_shards
