"""One sentence about an error in a user's code: where it was raised, what was raised, and what to do instead."""

from __future__ import annotations

import logging
import os
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

_LONGEST = 300  # characters of another program's message
RUN = "have the step computed once, by `placeto capture --run` or capture_training(run=True), and place that graph"
_NO_VALUES = (
    "a tensor's value is read (.item(), float(), if, print with a format, .tolist(), .numpy()), but there are "
    f"only shapes here: leave it out, use torch.where, or {RUN}"
)
_NO_SHAPE = (
    "the shape of a result depends on values (a mask as an index, nonzero, unique), but there are only shapes here: "
    f"use torch.where, or a fixed size, or {RUN}"
)
_NO_DEVICE = "leave out .cuda(), .to(device) and device=: nothing is computed here, and devices are the cluster's"
_NO_BRANCH = "what torch.cond, while_loop, scan or torch.compile run can't be captured: write it out"
_NO_FLEX = (
    "flex_attention can't be captured, nor in an inference, which is traced with autograd: write it out, or use "
    "scaled_dot_product_attention with attn_mask"
)
NO_LAYOUT = (
    "sparse and nested tensors can't be captured: make them dense, by .to_dense() or padding, and the gradients of an "
    "embedding by sparse=False"
)
_NO_KERNEL = "cast a tensor, as by .long() or .float()"
_NO_GRADIENT = (
    "do it under torch.no_grad() in forward, also in inference, or by functions that return a new tensor, without out= "
    "and resize_"
)
_ADVICE = {  # part of the exception's type and message -> advice
    "DataDependentOutput": _NO_VALUES,
    "out=... arguments don't support automatic": _NO_GRADIENT,
    "cannot resize variables that require grad": _NO_GRADIENT,
    "leaf Variable that requires grad is being used in an in-place": _NO_GRADIENT,
    "cannot be called on meta tensors": _NO_VALUES,
    "Tensor.__format__": _NO_VALUES,
    "numpy() is not supported": _NO_VALUES,
    "can't convert meta device": _NO_VALUES,
    "DynamicOutputShape": _NO_SHAPE,
    "FlexAttention": _NO_FLEX,
    "flex_attention": _NO_FLEX,
    "higher-order op": _NO_BRANCH,
    "Unsupported: ": _NO_BRANCH,
    "SparseTensor": NO_LAYOUT,
    "SparseCsrTensor": NO_LAYOUT,
    "NestedTensor": NO_LAYOUT,
    "_nested_tensor": NO_LAYOUT,
    "shape_env must not be None": NO_LAYOUT,
    "copy out of meta tensor": _NO_DEVICE,
    "scalar type": _NO_KERNEL,
    "Expected dtype": _NO_KERNEL,
    "tensors used as": _NO_KERNEL,
    "bias type": _NO_KERNEL,
    "DeviceMismatch": _NO_DEVICE,
    "cuda": _NO_DEVICE,
    "CUDA": _NO_DEVICE,
    "NVIDIA driver": _NO_DEVICE,
}
_TORCH, _OWN = str(Path(torch.__file__).parent), str(Path(__file__).parent)
_STDLIB = sysconfig.get_path("stdlib")
_LIBRARIES = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


class NotRunWarning(UserWarning):
    """A captured step can be placed, but not run: a placed step would not do what the module does."""


def call_loss(loss: Callable[..., Any], output: Any, targets: Sequence[Any]) -> Any:
    """Call the loss and return what it gives. `explain` recognises an error of the loss by this function's frame."""
    return loss(output, *targets)


def explain(error: BaseException, module: nn.Module | None = None, otherwise: str = "") -> str:
    """Describe an error in one sentence: module, line of the user's code, type and message, and advice.

    Args:
        error: what the user's code raised; may be a `SystemExit`.
        module: the module that was traced; a submodule is named by its path in it.
        otherwise: the advice for an error for which `_ADVICE` has none.
    """
    places = [place for place in (_module(error, module), _line(error)) if place]
    if not places and module is not None:
        places = [f"the module ({type(module).__name__})"]
    if isinstance(error, SystemExit):
        raised = f"sys.exit({'' if error.code is None else repr(error.code)}) was called"
    else:
        message = next(iter(str(error).strip().splitlines()), "no message")
        raised = f"{type(error).__name__}: {message[:_LONGEST].rstrip('.')}"
    advice = next((advice for part, advice in _ADVICE.items() if part in raised), otherwise)
    if advice != otherwise:  # torch's own is about runs, where nothing is run
        raised = raised.partition(". Please ")[0]
    return ": ".join([", ".join(places), raised] if places else [raised]) + (f"; {advice}" if advice else "")


def _module(error: BaseException, module: nn.Module | None) -> str:
    """A phrase for the innermost submodule that was being called, or for the loss; "" if it was the module itself."""
    paths = {} if module is None else {id(part): path for path, part in module.named_modules()}
    innermost: nn.Module | None = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code is call_loss.__code__:
            return "the loss"
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(first, nn.Module) and id(first) in paths:
            innermost = first
    if innermost is None:
        return ""
    return f"module {paths[id(innermost)]!r} ({type(innermost).__name__})" if innermost is not module else ""


def _line(error: BaseException) -> str:
    """File and line of the innermost call in the user's code; without one, of a library's; "" if there is neither.

    Calls in torch, in this package's capture and in the standard library are skipped.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_relative(error.filename)}:{error.lineno}"
    lines: dict[bool, str] = {}  # whether a file is a library's -> file and line of the innermost call in such files
    for frame, number in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        library = file.startswith(_LIBRARIES)
        if not file.startswith(("<", _TORCH, _OWN)) and (library or not file.startswith(_STDLIB)):
            lines[library] = f"{_relative(file)}:{number}"
    return lines.get(False) or lines.get(True, "")


def _relative(file: str) -> str:
    short = os.path.relpath(file)
    return file if short.startswith("..") else short


def without_logs() -> AbstractContextManager[Any]:
    """A context in which torch doesn't log the traceback of an error that it also raises."""
    return patch.object(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True)
