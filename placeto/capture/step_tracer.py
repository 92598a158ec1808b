"""Trace a step as often as it takes: to record it, to see whether the next step is the same, and to compare it later.

A trace leaves the module as the step does: whoever traces puts the module back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from placeto.capture.inputs.batch_dimension import Sizes, check_sizes, first_samples, is_sequence_first
from placeto.capture.inputs.objects import Kept, closed, opened
from placeto.capture.module_state.atomic_module import Whole, with_tensors
from placeto.capture.module_state.attributes import Snapshot, attribute
from placeto.capture.module_state.change_detection import Signature
from placeto.capture.tracing.checkpoints import without_reentrant_checkpoints
from placeto.capture.tracing.lifetimes import storage_of
from placeto.capture.tracing.meanwhile import meanwhile
from placeto.capture.tracing.node_labels import Labels
from placeto.capture.tracing.own_gradients import gradients_noted
from placeto.capture.tracing.recorder import functional, mutates, record
from placeto.capture.user_errors import without_logs
from placeto.errors import CaptureError

_SEED = 0  # seed of the random numbers of a step that is computed


@dataclass(frozen=True)
class StepTrace:
    """The trace of one micro-batch, and what it has shown of the module."""

    traced: GraphModule  # functional
    calls: Mapping[str, int]  # how often each module is called
    own_gradients: tuple[str, ...]  # what makes gradients of its own in the forward pass, each with its module
    signature: Signature  # of the trace before it was made functional
    assigned: list[tuple[Any, str]]  # attributes that the step itself sets, as container and name
    refusal: str  # why the step can't be run, "" if it can


class StepTracer:
    """Traces one micro-batch of a step, always with the same arguments and random numbers.

    Args:
        whole: the module, with the function that calls it.
        loss_modules: further modules that the function calls, by name.
        arguments: plain inputs and targets of the whole batch.
        length: the length of the batch.
        micro_batches: the number of parts into which the batch is split.
        labels: the labels that the function gives to what it runs.
        run: whether to compute the step, on copies of the tensors, in place of tracing it on fake tensors.
    """

    def __init__(
        self,
        whole: Whole,
        loss_modules: Mapping[str, nn.Module],
        arguments: Any,
        length: int,
        micro_batches: int,
        labels: Labels,
        run: bool,
    ) -> None:
        self._whole, self._loss_modules, self._labels = whole, loss_modules, labels
        self._arguments, self._length, self._micro_batches = arguments, length, micro_batches
        self._fake_mode = None if run else FakeTensorMode(allow_non_fake_inputs=True)
        self.state = Snapshot(whole)  # the module as it is before the first trace
        self._own_tensors = self.state.tensors()
        tensors = {"parameter": whole.named_parameters(), "buffer": whole.named_buffers()}
        self._replaced = {
            storage_of(tensor)._cdata: f"{whole.title}: the loss, or forward, holds the {kind} "
            f"{path.removeprefix('module.')!r} itself, or a part of it, which is another tensor while the module is "
            "traced: read it from the module each time"
            for kind, named in tensors.items()
            for path, tensor in named
        }

    def trace(self, returned: Kept | None) -> StepTrace:
        """Trace the step.

        Args:
            returned: what notes the outputs of an inference, which are joined if there are micro-batches; else None.

        Raises:
            CaptureError: forward changes the shape of a tensor, or dimension 0 isn't the batch.
        """
        with self._contexts():
            traced = self._record()
            calls, own_gradients = self._labels.calls, tuple(self._labels.own_gradients)
            signature = Signature.of_trace(traced, self._own_tensors)
            changes = [(container, key, attribute(where, key)) for where, container, key in self.state.changes()]
            phrases = ", ".join(dict.fromkeys(phrase for _, _, phrase in changes))
            refusal = self._refusal(phrases, signature, traced) if changes else ""
            self.state.restore()
            receivers = self._labels.sharing.receivers
            if receivers:
                differs, changed = self._on_copies(signature)
                traced.meta["unrepeatable"] |= {*receivers} if differs else changed
                for path in (path for path, is_copied in receivers.items() if is_copied and differs):
                    traced.meta["shared"].setdefault(path, {})[path] = None
            if self._micro_batches > 1:
                self._check_sizes(returned)
            if mutates(traced):
                traced = functional(traced, tree_flatten(self._values(self._micro_batches))[0])
        assigned = [(container, key) for container, key, _ in changes]
        return StepTrace(traced, calls, own_gradients, signature, assigned, refusal)

    def signature(self) -> Signature:
        """Trace the step anew, and return its signature."""
        with self._contexts():
            return Signature.of_trace(self._record(), self._own_tensors)

    def _on_copies(self, signature: Signature) -> tuple[bool, set[str]]:
        """Whether the step computes else if each module gets copies of the lists and mappings in its arguments.

        A function may keep a table from its first call on. So on a difference the step is traced once more as it is.

        Returns:
            Whether it does, and the paths of the modules of which an argument, or its copy, is changed.
        """
        on_copies = self._traced_again(on_copies=True)
        changed = self._labels.sharing.was_changed()
        return on_copies != signature.whole and on_copies != self._traced_again(on_copies=False), changed

    def _traced_again(self, on_copies: bool) -> Any:
        """Return what identifies the step in a further trace; None if a module raises an exception."""
        self._labels.handing_over = on_copies
        try:
            return Signature.of_trace(self._record(), self._own_tensors).whole
        except Exception:  # whatever a module raises that doesn't find what another one has written
            return None
        finally:
            self._labels.handing_over = False
            self.state.restore()

    def _refusal(self, changed: str, signature: Signature, traced: GraphModule) -> str:
        """Why a step whose forward changes attributes can't be run; "" if they have settled after the first step.

        The next step is traced. If it is the same, and leaves the attributes alike, then all later steps are too.
        """
        after_first = Snapshot(self._whole)
        try:
            first = signature, traced.meta["tensors"]
            following = Signature.of_trace(self._record(), self._own_tensors, first)
            if following.whole == signature.whole and after_first.is_alike():
                return ""
        except Exception:  # whatever the module raises in its second step
            pass
        return (
            f"forward changes {changed}, on which later steps may depend: register it as a buffer that keeps its shape "
            "(self.register_buffer), or pass it in and out"
        )

    def _check_sizes(self, returned: Kept | None) -> None:
        """Refuse micro-batches if dimension 0 isn't the batch; see `placeto.capture.inputs.batch_dimension`."""
        sizes: list[Sizes] = []

        def call(inputs: Any, targets: Any) -> list[Tensor | None]:
            sizes.append(Sizes.of(self._whole.module, inputs))
            return []

        numbers = returned is not None and returned.values
        if not numbers and not any(map(is_sequence_first, self._whole.module.modules())):
            return
        for parts in (1, self._micro_batches):
            params, buffers, *arguments = self._values(parts)
            with with_tensors(self._whole, params | buffers):
                Whole(self._whole.module, call, self._loss_modules, self._whole.title)(*closed(arguments))
            self.state.restore()
        whole, part = sizes
        check_sizes(whole, part, returned is not None, self._whole.title)

    def _record(self) -> GraphModule:
        """Record the step of a micro-batch; refuse a step that changes the shape of a tensor that it is given."""
        leaves, spec = tree_flatten(self._values(self._micro_batches))

        def step(*leaves: Any) -> Any:
            params, buffers, *arguments = tree_unflatten(leaves, spec)
            with with_tensors(self._whole, params | buffers):
                return self._whole(*closed(arguments))

        shapes = [_shape(leaf) for leaf in leaves]
        with torch.enable_grad(), self._labels.following(self._whole.module):
            traced = record(step, leaves, self._labels, self._replaced)
        for leaf, shape in zip(leaves, shapes, strict=True):
            if _shape(leaf) != shape:
                raise CaptureError(
                    f"{self._whole.title}: forward changes the shape of a tensor {shape[0]} that it is given, or "
                    f"holds, to {_shape(leaf)[0]}, as by resize_, t_ or unsqueeze_: a placed step leaves shapes as "
                    "they are, so change that of a new tensor, as by reshape, t or unsqueeze"
                )
        return traced

    def _values(self, parts: int) -> Any:
        """Parameters, buffers, and the first of so many parts of inputs and targets; fake tensors, or copies."""
        is_run = self._fake_mode is None
        if is_run:  # so that each trace draws the same numbers
            torch.random.manual_seed(_SEED)
        tensor = _real if is_run else _fake
        params = {key: tensor(p).requires_grad_(p.requires_grad) for key, p in self._whole.named_parameters()}
        buffers = {key: tensor(b) for key, b in self._whole.named_buffers()}
        arguments = tree_map(lambda leaf: _requiring_grad(tensor(leaf), leaf), opened(self._arguments))
        if parts > 1:
            arguments = first_samples(arguments, self._length, self._length // parts)
        return params, buffers, *arguments

    @contextmanager
    def _contexts(self) -> Iterator[None]:
        """All contexts in which a step is traced."""
        with ExitStack() as stack:
            for context in (
                # with oneDNN, which torch uses by default, `nn.LSTM` on the CPU is a single op
                meanwhile(torch._C._set_mkldnn_enabled, False, torch._C._get_mkldnn_enabled()),
                without_logs(),
                without_reentrant_checkpoints(),
                self._labels.draws.following(self._labels.at_present_call),
                gradients_noted(self._labels.note_own_gradients),
                _uncompiled(),
                patch.object(torch.distributions.Distribution, "_validate_args", False),  # which reads values
            ):
                stack.enter_context(context)
            stack.enter_context(self._fake_mode or torch.random.fork_rng(devices=[]))
            yield


def _shape(value: Any) -> tuple[Any, ...]:
    return (tuple(value.shape), value.stride()) if isinstance(value, Tensor) else ()


def _fake(value: Any) -> Any:
    """A tensor of the same layout on the CPU, fake in a `FakeTensorMode`; other values are returned as they are.

    Fake tensors on "cuda" would abort a build of torch without CUDA.
    """
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")


def _real(value: Any) -> Any:
    """A copy of a tensor on the CPU, which a step may change without changing the module; other values unchanged."""
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def _requiring_grad(traced: Any, value: Any) -> Any:
    """The traced stand-in of a given value, made to require a gradient if the given tensor does."""
    return traced.requires_grad_() if isinstance(value, Tensor) and value.requires_grad else traced


def _uncompiled() -> AbstractContextManager[Any]:
    """A context in which compiled functions run uncompiled. It doesn't import the compiler if nothing else has."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
