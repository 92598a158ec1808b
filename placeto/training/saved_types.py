"""Types of the values in a checkpoint, for `placeto.problem.checks.checked`: plain ones, and those like an example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import core_schema
from torch import Tensor

from placeto.problem.checks import Flag, Index, Text, record_type

Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]

_FLOATS = torch.float64, torch.float32, torch.float16, torch.bfloat16
_DTYPES = (*_FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def is_plain(value: Any) -> bool:
    """Whether a value is of a kind that checkpoints hold: no container, and no tensor of an unusual kind."""
    if not isinstance(value, Tensor):
        return value is None or isinstance(value, str | int | float)
    usual = type(value) is Tensor and value.device.type == "cpu" and value.dtype in _DTYPES
    dense = usual and value.layout == torch.strided and not (value.is_nested or value.is_neg() or value.requires_grad)
    return dense and value.numel() * value.element_size() <= value.untyped_storage().nbytes()


@dataclass(frozen=True)
class TensorOf:
    """Annotates tensors of a shape, in which None is any length, and a dtype."""

    shape: tuple[int | None, ...]
    dtype: torch.dtype

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        return {}

    def _check(self, value: Any) -> Tensor:
        wanted = f"must be {_described(self.dtype, self.shape)}"
        if not isinstance(value, Tensor):
            raise ValueError(wanted)
        lengths = zip(value.shape, self.shape, strict=False)
        same = value.dtype == self.dtype and len(value.shape) == len(self.shape)
        if not same or any(wanted is not None and length != wanted for length, wanted in lengths):
            raise ValueError(f"is {_described(value.dtype, tuple(value.shape))}, it {wanted}")
        return value


def _described(dtype: torch.dtype, shape: tuple[int | None, ...]) -> str:
    lengths = ", ".join("any" if length is None else str(length) for length in shape)
    return f"a tensor of {str(dtype).removeprefix('torch.')} [{lengths}]"


def tensor_like(example: Tensor) -> Any:
    """Return the type of tensors with the shape and dtype of an example."""
    return Annotated[Any, TensorOf(tuple(example.shape), example.dtype)]


@dataclass(frozen=True)
class Numbered:
    """Annotates dicts with keys from 0 on, of which some may be missing, and a type of its own for each value."""

    kinds: tuple[Any, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        kind = record_type("Numbered", {}, {str(number): kind for number, kind in enumerate(self.kinds)})
        named = core_schema.no_info_before_validator_function(_named, handler.generate_schema(kind))
        return core_schema.no_info_after_validator_function(_numbered, named)


def _named(value: Any) -> Any:
    if not isinstance(value, dict) or not all(type(key) is int for key in value):
        raise ValueError("must be an object whose keys are integers")
    return {str(key): item for key, item in value.items()}


def _numbered(value: dict[str, Any]) -> dict[int, Any]:
    return {int(key): item for key, item in value.items()}


def like(example: Any) -> Any:
    """Return the type of values like an example: with its keys and lengths, and its tensors' shapes and dtypes."""
    if isinstance(example, Tensor):
        return tensor_like(example)
    if isinstance(example, Mapping):
        return record_type("Values", {key: like(item) for key, item in example.items()}, {})
    if isinstance(example, list | tuple):
        return tuple[tuple(map(like, example))]  # type: ignore[misc]
    return {bool: Flag, int: Index, float: Finite, str: Text}[type(example)]
