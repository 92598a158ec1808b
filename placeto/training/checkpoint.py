"""Checkpoints: one plain dict in one file, written atomically, loaded without running code from it."""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import AfterValidator

from placeto.errors import TrainingError
from placeto.plumbing.terminal import printable
from placeto.policies.external import AnyPolicy, find_policy, policy_names
from placeto.policies.weights import SUFFIX, load_weights, save_weights
from placeto.pretrained import pretrained_path
from placeto.problem.checks import Index, Number, OpenRecord, Text, checked
from placeto.problem.files import atomic_write
from placeto.problem.messages import quote, within

CheckpointError = TrainingError  # its name before, for one version
FORMAT = "placeto.checkpoint/1"
FILE_NAME = "checkpoint.pt"
UNTRAINED = "untrained.pt"
"""File in a run's folder with the network before training, so that placers show what training is worth."""
_DEPTH = 16  # largest depth of dicts and lists inside one another
_VALUES = 500_000  # most values in all dicts and lists; a value counts once for each place where it is
_FLOATS = torch.float64, torch.float32, torch.float16, torch.bfloat16
_DTYPES = (*_FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    for value in _inner(values):
        number = isinstance(value, float) and math.isfinite(value)
        if not (value.isfinite().all() if isinstance(value, torch.Tensor) else number or not isinstance(value, float)):
            raise ValueError("holds a NaN or an infinite number: the training went wrong")
    return values


_Weights = Annotated[dict[Text, Any], AfterValidator(_finite)]


class Checkpoint(OpenRecord, total=False):
    """Values of checkpoints; `TrainState.restore` compares the others with those of a fresh state."""

    placer: Text
    config: dict[Text, Any]
    parameters: _Weights
    best_parameters: _Weights
    average: _Weights
    optimizer: _Weights
    devices: Index
    graphs: dict[Text, dict[Text, Text]]
    iteration: Index
    simulations: Index
    elapsed: Number
    history: dict[Index, Any]
    improvements: dict[Index, list[tuple[Index, Number, Number]]]
    controls: dict[Text, Number]


def checkpoint_path(path: str | Path) -> Path:
    """Return the path of a checkpoint file, which need not exist. In a directory, the file is ``checkpoint.pt``.

    "pretrained" is the checkpoint that comes with the package, unless there is a file or directory of this name.
    """
    path = Path(path)
    if str(path) == "pretrained" and not path.exists() and (comes_along := pretrained_path("placeto")) is not None:
        return comes_along
    return path / FILE_NAME if path.is_dir() else path


def save_checkpoint(state: Mapping[str, Any], path: str | Path) -> None:
    """Write a dict of plain values and tensors, so that a crash leaves either the old file or the new one.

    Plain values are dicts, lists, strings, numbers, booleans and None. The file also gets the value "format". If the
    path ends in .safetensors, it is a weights file, for plain values and ``best_parameters`` alone.

    Raises:
        OSError: the file can't be written.
        TypeError: a weights file can't hold a value, such as a tensor outside of ``best_parameters``.
    """
    path = checkpoint_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == SUFFIX:
        save_weights({"format": FORMAT, **state}, path)
        return
    buffer = BytesIO()  # not the file itself: torch hides errors in writing it behind its own
    torch.save({"format": FORMAT, **state}, buffer)
    with atomic_write(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def find_checkpoint(path: str | Path) -> Path:
    """Return the path of an existing checkpoint file, given this path or a run directory; see `checkpoint_path`.

    Raises:
        TrainingError: there is no such file.
    """
    path = checkpoint_path(path)
    if not path.is_file():
        where = f"run directory {path.parent} has no {FILE_NAME}" if path.name == FILE_NAME else f"{path}: no such file"
        raise TrainingError(f"{where}; give a checkpoint, or the --out directory of `placeto train`")
    return path


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint file, or the one of a run directory, and return its values; see `checkpoint_path`.

    Raises:
        TrainingError: there is no such file, it is no checkpoint, it is damaged, or its weights aren't finite.
        OSError: it can't be read.
    """
    path = find_checkpoint(path)
    state = _weights(path) if path.suffix == SUFFIX else _unpickled(path)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise TrainingError(f'{path}: not a checkpoint: "format" must be "{FORMAT}"')
    _check(state, path)
    return state


def _weights(path: Path) -> dict[str, Any]:
    """Read a weights file, with its parameters as tensors."""
    state = load_weights(path)
    parameters = {name: torch.from_numpy(value) for name, value in state["best_parameters"].items()}
    return state | {"best_parameters": parameters}


def _unpickled(path: Path) -> Any:
    """Read a file of `torch.save`, without running code from it, after checking its size and checksums."""
    data = BytesIO(path.read_bytes())
    try:
        with zipfile.ZipFile(data) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > len(data.getbuffer()):
                raise zipfile.BadZipFile("parts overlap or are compressed")
            damaged = archive.testzip()  # compares the checksum of each part, which torch doesn't do
        if damaged is not None:
            raise zipfile.BadZipFile(f"damaged: the checksum of {damaged} is another")
        data.seek(0)
        with warnings.catch_warnings(action="ignore"):  # of kinds of tensors that are refused afterwards
            state = torch.load(data, map_location="cpu", weights_only=True)
    except Exception as problem:  # damaged files raise many kinds of errors
        reason = _short(problem) or type(problem).__name__
        raise TrainingError(f"{path}: not a checkpoint ({reason})") from None
    return state


def _check(state: Mapping[str, Any], path: Path) -> None:
    """Refuse values of the wrong type, too many or too deep values, unusual tensors, and weights that aren't finite.

    Raises:
        TrainingError: there is such a value.
    """
    with within(TrainingError, f"{path}: not a checkpoint"):
        for key, value in state.items():
            if not all(map(_is_plain, _inner(value, key))):
                raise TrainingError(f"{quote(key)} holds a value, or a tensor, of an unknown kind")
        checked(state, Checkpoint, TrainingError)


def _is_plain(value: Any) -> bool:
    """Whether a value is of a kind that checkpoints hold: no container, and no tensor of an unusual kind."""
    if not isinstance(value, torch.Tensor):
        return value is None or isinstance(value, str | int | float)
    usual = type(value) is torch.Tensor and value.device.type == "cpu" and value.dtype in _DTYPES
    dense = usual and value.layout == torch.strided and not (value.is_nested or value.is_neg() or value.requires_grad)
    return dense and value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def kind_of(value: Any) -> Any:
    """Return the types in a value: dtypes and shapes of tensors, and what dicts and lists hold; to compare two values.

    >>> kind_of({"a": torch.zeros(2, 3), "b": [1, "c"]})
    {'a': (torch.float32, (2, 3)), 'b': [<class 'int'>, <class 'str'>]}
    """
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape)
    if isinstance(value, Mapping):
        return {key: kind_of(item) for key, item in value.items()}
    return [kind_of(item) for item in value] if isinstance(value, list | tuple) else type(value)


def _inner(value: Any, key: str = "") -> Iterator[Any]:
    """Yield what is in dicts and lists, and in those inside them; `key` names the value in messages.

    Raises:
        TrainingError: there are too many values, or too deep ones.
    """
    pending, seen = [(value, 1)], 0
    while pending:
        item, depth = pending.pop()
        if isinstance(item, dict | list | tuple):
            seen += len(item)
            if depth > _DEPTH or seen > _VALUES:
                raise TrainingError(f"{quote(key)} holds too many values, or too deep ones")
            pending += [(one, depth + 1) for one in (item.values() if isinstance(item, dict) else item)]
        else:
            yield item


def policy_of(checkpoint: Mapping[str, Any], path: str | Path) -> tuple[str, AnyPolicy]:
    """Return the name of a checkpoint's learned placer, and what the placer is made of.

    Raises:
        TrainingError: neither Placeto nor an installed package has it.
        PlacerError: the package that has it can't be used.
    """
    name = str(checkpoint.get("placer"))
    if name not in (known := policy_names()):
        why = f"no installed package has a learned placer {name!r:.60}; there are {', '.join(known)}"
        raise TrainingError(
            f"{path}: holds the placer {name!r:.60}: {why}; install the package that it was trained with"
        )
    return name, find_policy(name)


def check_shapes(make: Callable[[Any], Any], settings: Any, parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that aren't those of a policy with the given settings, if possible before it takes memory.

    Call it within `matching`, which makes a TrainingError of the ValueError.

    Args:
        make: makes the policy from its settings.
        settings: the policy's settings.
        parameters: tensors by name.

    Raises:
        ValueError: a parameter is missing, not one of the policy's, or of another shape.
    """
    try:
        with torch.device("meta"):  # shapes without values
            network = make(settings)
    except NotImplementedError:  # a network of another package that needs the values of its tensors
        network = make(settings)
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    for name in (*expected, *parameters):
        found = tuple(parameters[name].shape) if name in parameters else None
        if found != expected.get(name):
            wanted = expected.get(name, "no part of the policy")
            raise ValueError(f"parameter {name!r:.60}: {'missing' if found is None else found}, "
                             f"by the settings it is {wanted}")  # fmt: skip


@contextmanager
def matching(path: str | Path) -> Iterator[None]:
    """Turn errors within it, from a checkpoint without a value or with one of another kind, into a TrainingError.

    Raises:
        TrainingError: there was such an error; the message names the path and the error in one sentence.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError, OverflowError) as problem:
        if isinstance(problem, TrainingError) and str(problem).startswith(f"{path}: "):
            raise
        reason = _short(problem)
        reason = f"it has no {reason}" if isinstance(problem, KeyError) else reason
        raise TrainingError(f"{path}: doesn't match this version of Placeto ({reason}); train again") from None


def _short(problem: Exception) -> str:
    """Return up to 120 characters of an error's message as one line, with control characters made visible."""
    return printable(" ".join(str(problem).split())[:120])


def capture_random(generators: Sequence[np.random.Generator | torch.Generator] = ()) -> dict[str, Any]:
    """Return the states of torch's global generator and of the given generators, for a checkpoint."""
    return {"torch": torch.get_rng_state(), "generators": [_capture(generator) for generator in generators]}


def restore_random(state: Mapping[str, Any], generators: Sequence[np.random.Generator | torch.Generator] = ()) -> None:
    """Restore the states that `capture_random` returned; the generators must be in the same order.

    Raises:
        TrainingError: the checkpoint holds another number or kind of generators.
    """
    saved = state["generators"]
    if len(saved) != len(generators):
        raise TrainingError(f"the checkpoint holds {len(saved)} random generators, not {len(generators)}")
    torch.set_rng_state(state["torch"])
    for generator, value in zip(generators, saved, strict=True):
        if isinstance(generator, torch.Generator) != isinstance(value, torch.Tensor):
            raise TrainingError("the checkpoint holds random generators of another kind")
        if isinstance(generator, torch.Generator):
            generator.set_state(value)
        else:
            generator.bit_generator.state = _from_plain(value)


def _capture(generator: np.random.Generator | torch.Generator) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return _to_plain(generator.bit_generator.state)


def _to_plain(value: Any) -> Any:
    """Convert a state of numpy's generators to plain values: ``weights_only`` needs 128-bit integers as strings."""
    if isinstance(value, Mapping):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return {"integer": str(int(value))}
    return value


def _from_plain(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if set(value) == {"integer"}:
        return int(value["integer"])
    if set(value) == {"array", "dtype"}:
        return np.array(value["array"], value["dtype"])
    return {key: _from_plain(item) for key, item in value.items()}
