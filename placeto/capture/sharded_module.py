"""A module as one rank of a tensor-parallel group has it, so that its step can be captured without the other ranks.

The layers are sharded by the library that would run them: torch's `parallelize_module`, or the tensor parallelism of
transformers. Its collectives go to a process group that communicates with nobody, and become ops of the graph.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional_collectives
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import _disable_current_modes

from placeto.capture.inputs.input_checks import check_module
from placeto.capture.tracing.meanwhile import meanwhile
from placeto.capture.user_errors import explain
from placeto.errors import CaptureError

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
        tied = _untied(module)
        _apply(module, plan, dist.device_mesh.init_device_mesh("cpu", (width,)), name)
        _tie(module, tied, name)
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

    reduce = functional_collectives.all_reduce_inplace
    with (
        meanwhile(partial(setattr, ShardingPropagator, shapes.__name__), unseen, shapes),
        meanwhile(partial(setattr, dist, "all_reduce"), reduce, dist.all_reduce),
    ):
        yield


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    on_meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return nn.Parameter(on_meta, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else on_meta


def _apply(module: nn.Module, plan: ParallelPlan, mesh: Any, name: str) -> None:
    """Shard what a plan names; these parameters are DTensors then.

    Raises:
        CaptureError: the plan names what isn't there, or a style that there isn't or that doesn't suit its module.
    """
    from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

    modules = [path for path, _ in module.named_modules()]
    parameters = [path for path, _ in module.named_parameters()]
    brought_along = getattr(module, "tp_plan", None) or {}  # which may be for variants of the model as well
    named_modules, named_parameters, of_modules = dict[str, str](), dict[str, str](), dict[str, str]()
    for pattern, style in plan.items():
        if not isinstance(pattern, str) or not isinstance(style, str | ParallelStyle | dict):
            what = f"has {type(style).__name__} for {pattern!r}"
            raise CaptureError(
                f"{name}: the parallel plan {what}: it must have a ParallelStyle for the path of a module"
            )
        paths = [path for path in modules if _matches(path, pattern)]
        own = [path for path in parameters if _matches(path, pattern)]
        if not paths and not own and pattern not in brought_along:
            raise CaptureError(f"{name}: the parallel plan has {pattern!r}, and the model has no such module")
        if isinstance(style, str):
            named_modules |= dict.fromkeys(paths, style)
            named_parameters |= dict.fromkeys(own, style)
            of_modules |= {path: style for path in parameters if _matches(path.rpartition(".")[0], pattern)}
            continue
        try:
            for path in paths:
                parallelize_module(module.get_submodule(path), mesh, style, src_data_rank=None)
        except Exception as problem:  # whatever a style raises on a module that doesn't suit it
            raise CaptureError(
                f"{name}: the parallel plan can't be applied to {pattern!r}: {explain(problem)}"
            ) from None
    if not (named := of_modules | named_parameters | named_modules):
        return
    try:
        from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES, apply_tensor_parallelism
    except ImportError:
        raise CaptureError(f"{name}: transformers 5.23 or later is needed to apply its parallel plan") from None
    if unknown := next((style for style in named.values() if style not in ALL_PARALLEL_STYLES), None):
        raise CaptureError(f"{name}: the parallel plan has {unknown!r}, which is no style of transformers")
    try:
        apply_tensor_parallelism(module, mesh, named)
    except Exception as problem:  # as above
        raise CaptureError(f"{name}: transformers can't apply the parallel plan: {explain(problem)}") from None


def _matches(path: str, pattern: str) -> bool:
    """Whether a path has as many parts as a pattern, and each part matches.

    >>> _matches("layers.0.q", "layers.*.q"), _matches("layers.0.a.q", "layers.*.q")
    (True, False)
    """
    parts, patterns = path.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _untied(module: nn.Module) -> list[tuple[str, str]]:
    """Give each module its own parameters; return pairs of paths of those that were one: the first and another one."""
    first, pairs = dict[int, str](), list[tuple[str, str]]()
    for path, parameter in list(module.named_parameters(remove_duplicate=False)):
        if first.setdefault(id(parameter), path) != path:
            pairs.append((first[id(parameter)], path))
            _put(module, path, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))
    return pairs


def _tie(module: nn.Module, pairs: Iterable[tuple[str, str]], name: str) -> None:
    """Let parameters be one again.

    Raises:
        CaptureError: they aren't sharded alike.
    """
    for path, other in pairs:
        mine, others = module.get_parameter(path), module.get_parameter(other)
        if getattr(mine, "placements", None) != getattr(others, "placements", None):
            raise CaptureError(
                f"{name}: {path} and {other} are one parameter, and the parallel plan doesn't shard it alike in both"
            )
        _put(module, other, mine)


def _put(module: nn.Module, path: str, parameter: nn.Parameter) -> None:
    owner, _, key = path.rpartition(".")
    module.get_submodule(owner)._parameters[key] = parameter


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
