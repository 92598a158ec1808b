"""Applies a tensor-parallel plan to a module on a device mesh, by the library that people use for it.

This file is also copied into the programs that `placeto export` writes, so it imports nothing of Placeto.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh


def apply_plan(module: nn.Module, plan: Mapping[str, Any], mesh: DeviceMesh) -> None:
    """Shard what a plan names; these parameters are DTensors then. Parameters that are one stay one.

    Args:
        module: the whole module, whose parameters are equal on all ranks.
        plan: path of a module, with ``*`` in place of any part -> a `ParallelStyle` of torch, or the name of a style of
            transformers.
        mesh: the ranks of the group.

    Raises:
        ValueError: the plan names what isn't there, a style that there isn't or that doesn't suit its module, or two
            styles for one parameter.
    """
    tied = _untied(module)
    _shard(module, plan, mesh)
    _tie(module, tied)


def _shard(module: nn.Module, plan: Mapping[str, Any], mesh: DeviceMesh) -> None:
    from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

    modules = [path for path, _ in module.named_modules()]
    parameters = [path for path, _ in module.named_parameters()]
    brought_along = getattr(module, "tp_plan", None) or {}  # which may be for variants of the model as well
    named_modules, named_parameters, of_modules = dict[str, str](), dict[str, str](), dict[str, str]()
    for pattern, style in plan.items():
        if not isinstance(pattern, str) or not isinstance(style, str | ParallelStyle | dict):
            what = f"has {type(style).__name__} for {pattern!r}"
            raise ValueError(f"the parallel plan {what}: it must have a ParallelStyle for the path of a module")
        paths = [path for path in modules if _matches(path, pattern)]
        own = [path for path in parameters if _matches(path, pattern)]
        if not paths and not own and pattern not in brought_along:
            raise ValueError(f"the parallel plan has {pattern!r}, and the model has no such module")
        if isinstance(style, str):
            named_modules |= dict.fromkeys(paths, style)
            named_parameters |= dict.fromkeys(own, style)
            of_modules |= {path: style for path in parameters if _matches(path.rpartition(".")[0], pattern)}
            continue
        try:
            for path in paths:
                parallelize_module(module.get_submodule(path), mesh, style, src_data_rank=None)
        except Exception as problem:  # whatever a style raises on a module that doesn't suit it
            raise ValueError(f"the parallel plan can't be applied to {pattern!r}: {_explained(problem)}") from None
    if not (named := of_modules | named_parameters | named_modules):
        return
    try:
        from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES, apply_tensor_parallelism
    except ImportError:
        raise ValueError("transformers 5.23 or later is needed to apply its parallel plan") from None
    if unknown := next((style for style in named.values() if style not in ALL_PARALLEL_STYLES), None):
        raise ValueError(f"the parallel plan has {unknown!r}, which is no style of transformers")
    try:
        apply_tensor_parallelism(module, mesh, named)
    except Exception as problem:  # as above
        raise ValueError(f"transformers can't apply the parallel plan: {_explained(problem)}") from None


def _explained(problem: Exception) -> str:
    """Return the type and the first line of an error."""
    return f"{type(problem).__name__}: {next(iter(str(problem).strip().splitlines()), 'no message')}"


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


def _tie(module: nn.Module, pairs: Iterable[tuple[str, str]]) -> None:
    """Let parameters be one again; a ValueError refuses those that aren't sharded alike."""
    for path, other in pairs:
        mine, others = module.get_parameter(path), module.get_parameter(other)
        if getattr(mine, "placements", None) != getattr(others, "placements", None):
            raise ValueError(
                f"{path} and {other} are one parameter, and the parallel plan doesn't shard it alike in both"
            )
        _put(module, other, mine)


def _put(module: nn.Module, path: str, parameter: nn.Parameter) -> None:
    owner, _, key = path.rpartition(".")
    module.get_submodule(owner)._parameters[key] = parameter
