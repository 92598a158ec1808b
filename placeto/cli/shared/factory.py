"""Finds a function of the user's code that the command line names, and calls it; its arguments are never evaluated.

``package.module:function``, ``path/to/file.py:function``, either with arguments in Python's own notation behind it, as
``zoo.py:unet(depth=4)``.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from placeto.capture.inputs.arguments import plain
from placeto.capture.inputs.batch_dimension import batch_length, first_samples
from placeto.capture.trace import capture_training
from placeto.capture.user_errors import explain
from placeto.cli.shared.options import StepOptions, TraceOptions
from placeto.errors import CaptureError, UsageError
from placeto.problem.graph import ComputationGraph
from placeto.problem.messages import within

_FORM = "must be package.module:function or file.py:function"
_RETURNS = "must return (module, inputs), (module, inputs, loss) or (module, inputs, loss, targets)"
LOSS_NEEDED = "return (module, inputs, loss), or add --loss mean"
"""What to do about a factory without a loss whose module gives none."""
_LONGEST = 5  # what it returns may also have a parallel plan
_SHOWN = 8  # names of other functions in a message
_FILE = re.compile(r"(.*?\.py):(.*)", re.DOTALL)  # a path may have a colon of its own, as on Windows
_OF_OUTPUT: dict[str, Callable[..., Any]] = {  # whatever the targets are
    "sum": lambda output, *targets: torch.sum(output),
    "mean": lambda output, *targets: torch.mean(output),
}


class UserStep(NamedTuple):
    """What a FACTORY or a CONFIG makes: a module, and what its step takes."""

    name: str
    module: nn.Module
    inputs: Any
    loss: Any = None
    targets: Any = ()
    parallel: Mapping[str, Any] | None = None  # styles of its layers in tensor-parallel groups

    @property
    def batch(self) -> int:
        """Number of samples of the step; 0 if it isn't known."""
        return batch_length(self.inputs, self.targets)

    def with_samples(self, count: int) -> UserStep:
        """Return the step of the first `count` samples; the step itself if that are all."""
        if count == self.batch:
            return self
        inputs, targets = first_samples((plain(self.inputs), plain(self.targets)), self.batch, count)
        return self._replace(inputs=inputs, targets=targets)

    def capture(self, options: StepOptions, micro_batches: Any, name: str = "", **more: Any) -> ComputationGraph:
        """Return the graph of the training step; `more` are further arguments of `capture_training`.

        Raises:
            CaptureError: the step can't be captured.
        """
        how: dict[str, Any] = {"precision": options.precision, "optimizer": options.optimizer}
        how |= {"master_weights": options.master_weights, "name": name or self.name, "targets": self.targets}
        how["parallel"] = self.parallel
        try:
            return capture_training(self.module, self.inputs, self.loss, micro_batches=micro_batches, **how, **more)
        except CaptureError as problem:
            if self.loss is None and "the loss must be a scalar" in str(problem):
                raise CaptureError(f"{problem}: {LOSS_NEEDED}") from None
            raise


def user_step(factory: str, options: TraceOptions, device: str = "meta") -> UserStep:
    """Call a FACTORY, and return its step with the loss of the options; on the CPU, its tensors hold numbers.

    Raises:
        UsageError: there is no such function or loss, or the function returned something else.
    """
    from placeto.runtime.real_steps import filled

    with filled() if device == "cpu" else nullcontext():
        returned = make(factory, options.settings, device)
    if isinstance(returned, nn.Module):
        raise UsageError(f"{factory} {_RETURNS}, not the module alone: its inputs are needed as well")
    is_step = isinstance(returned, tuple) and 2 <= len(returned) <= _LONGEST and isinstance(returned[0], nn.Module)
    if not is_step or any(callable(targets) for targets in returned[3:]):
        parts = f" of {', '.join(type(part).__name__ for part in returned)}" if isinstance(returned, tuple) else ""
        raise UsageError(f"{factory} {_RETURNS}, not a {type(returned).__name__}{parts}")
    if not all(isinstance(plan, Mapping | None) for plan in returned[4:]):
        raise UsageError(
            f"{factory}: the fifth value that it returns must be a parallel plan, a dict of paths and styles"
        )
    step = UserStep(parted(factory)[1].partition("(")[0].strip(), *returned)
    return step if options.loss is None else step._replace(loss=find_loss(options.loss))


def make(factory: str, settings: Sequence[str], device: str = "meta") -> Any:
    """Call the function that `factory` names under ``torch.device(device)``, and return what it returns.

    Args:
        factory: the function, written as this module's docstring says.
        settings: further arguments, each as ``name=value``; a value that is no Python literal is text.

    Raises:
        UsageError: there is no such function, it doesn't take these arguments, or it raises.
    """
    with within(UsageError, repr(factory)):
        where, call = parted(factory)
        if not call and where.endswith(".py") and (names := functions_of(Path(where))):
            there = ", ".join(f"{where}:{name}" for name in names)
            raise UsageError(f"name the function in it that {_RETURNS.replace('must return', 'returns')}: {there}")
        name, positional, named = _parse(call)
        function = _find(where, name)
    for key, value in settings_of(settings).items():
        if key in named:
            raise UsageError(f"--set {key}: is given twice")
        named[key] = value
    try:
        inspect.signature(function).bind(*positional, **named)
    except TypeError as problem:
        raise UsageError(f"{factory}: {problem}; it is {name}{inspect.signature(function)}") from None
    except ValueError:  # a built-in function without a signature
        pass
    with within(UsageError, factory), _users_code(), torch.device(device):
        return function(*positional, **named)


def settings_of(settings: Sequence[str]) -> dict[str, Any]:
    """Parse arguments given as ``name=value``; a value that is no Python literal is text.

    Raises:
        UsageError: an argument isn't written so, or is given twice.
    """
    named: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"--set {setting!r}: must be name=value")
        if key in named:
            raise UsageError(f"--set {setting!r}: {key} is given twice")
        named[key] = _literal(value)
    return named


def parted(factory: str) -> tuple[str, str]:
    """Split a factory into its module or file, and its function with the arguments, if there are any.

    >>> parted("zoo.py:unet(depth=4)"), parted("C:/zoo.py:unet")
    (('zoo.py', 'unet(depth=4)'), ('C:/zoo.py', 'unet'))
    """
    match = _FILE.fullmatch(factory)
    where, _, call = (match[1], ":", match[2]) if match else factory.partition(":")
    return where, call


def functions_of(path: Path) -> list[str]:
    """Return the names of the first functions that a Python file defines, without running it; [] if unreadable."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"][:_SHOWN]


def find_loss(name: str) -> Callable[..., Any]:
    """Return a loss by name: ``sum`` or ``mean`` of the output, one of torch.nn.functional, or a function of the user.

    Raises:
        UsageError: there is no such loss.
    """
    if ":" in name:
        with within(UsageError, repr(name)):
            return _find(*parted(name))
    if name in _OF_OUTPUT:
        return _OF_OUTPUT[name]
    known = sorted(key for key in vars(nn.functional) if key.endswith(("_loss", "cross_entropy", "kl_div")))
    if name not in known:
        raise UsageError(f"--loss {name!r}: must be sum, mean, file.py:function, or one of {', '.join(known)}")
    return getattr(nn.functional, name)


@contextmanager
def _users_code() -> Iterator[None]:
    """Within it, whatever a user's code raises, SystemExit too, becomes a UsageError."""
    try:
        yield
    except (KeyboardInterrupt, UsageError):
        raise
    except BaseException as problem:
        raise UsageError(explain(problem)) from problem


def _parse(call: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Return name and arguments of ``function`` or ``function(...)``."""
    try:
        node = ast.parse(call.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        node = None
    if isinstance(node, ast.Name):
        return node.id, [], {}
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise UsageError(f"{_FORM}, with arguments such as (depth=4) if need be")
    try:
        named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg}
        if len(named) < len(node.keywords):
            raise ValueError("no ** there")
        return node.func.id, [ast.literal_eval(argument) for argument in node.args], named
    except (ValueError, TypeError, RecursionError, MemoryError):
        valid = "numbers, strings, lists and the like"
        raise UsageError(f"its arguments must be Python literals ({valid}), they aren't evaluated") from None


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


def _find(where: str, name: str) -> Callable[..., Any]:
    module = _from_file(Path(where)) if where.endswith(".py") else _from_name(where)
    if not hasattr(module, name):
        there = [key for key, value in vars(module).items() if inspect.isfunction(value) and key[0] != "_"]
        shown = f"; there are {', '.join(sorted(there)[:_SHOWN])}" if there else ""
        raise UsageError(f"{where} has no function {name!r}{shown}")
    function = getattr(module, name)
    if not callable(function):
        raise UsageError(f"{name!r} is not a function: it is of type {type(function).__name__}")
    if isinstance(function, nn.Module):
        raise UsageError(f"{name!r} is a module: name a function, which {_RETURNS}")
    return function


def _from_name(where: str) -> ModuleType:
    if where.startswith("."):
        raise UsageError("a relative name; write the whole of it, package.module:function, or a file.py")
    beside = f"; {where}.py is a file: write {where}.py:..." if where and Path(f"{where}.py").is_file() else ""
    if not all(part.isidentifier() for part in where.split(".")):
        raise UsageError(f"{_FORM}{beside}")
    _look_in(Path.cwd())
    with _users_code():
        try:
            return import_module(where)
        except ModuleNotFoundError as problem:
            if not problem.name or not f"{where}.".startswith(f"{problem.name}."):
                raise
            looked = f"; looked in {Path.cwd()} and where Python's packages are"
            raise UsageError(f"there is no module {problem.name!r}{beside or looked}") from None


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}")
    _look_in(path.absolute().parent)  # for what it imports from beside it
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    with _users_code():
        spec.loader.exec_module(module)
    return module


def _look_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
