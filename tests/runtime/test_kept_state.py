"""Buffers that a step assigns anew, attributes that it sets, and what a failed step leaves behind."""

import copy
import os
import sys
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from placeto.capture.trace import capture_training
from placeto.capture.user_errors import NotRunWarning
from placeto.errors import CaptureError, RunError
from tests.captures import square
from tests.runtime.true import assert_as_eager, step_of


class Layer(nn.Module):
    """With what forward does as a function of itself and its input."""

    def __init__(self, forward: Any, **attributes: Any) -> None:
        super().__init__()
        self.layer, self.compute = nn.Linear(4, 4), forward
        for name, value in attributes.items():
            if isinstance(value, Tensor) and not name.startswith("plain"):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, *inputs: Tensor) -> Any:
        return self.compute(self, *inputs)


def averaged(self: Any, x: Tensor) -> Tensor:
    y = self.layer(x)
    self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
    self.count = self.count + 1
    return y + self.mean * self.count


def registered(self: Any, x: Tensor) -> Tensor:
    self.layer.register_buffer("inner", self.layer.inner * 0.5 + x.mean(0), persistent=False)
    self.layer.inner, self.mean = self.mean, self.layer.inner
    return self.layer(x) * self.layer.inner - self.mean


def normalised(self: Any, x: Tensor) -> Tensor:
    self.layer.weight.data = functional.normalize(self.layer.weight.data, dim=1) * 0.5
    return self.layer(x)


def test_buffers_and_data_assigned_anew_are_as_in_eager() -> None:
    x = torch.randn(3, 4)
    assert_as_eager(Layer(averaged, mean=torch.zeros(4), count=torch.tensor(0)), [x], steps=3)
    module = Layer(registered, mean=torch.ones(4))
    module.layer.register_buffer("inner", torch.zeros(4))
    assert_as_eager(module, [x], steps=3)
    assert_as_eager(Layer(normalised), [x], steps=3)


def test_moving_averages_in_place_are_as_in_eager() -> None:
    """A number changes a tensor first, then another tensor does: as of a teacher, or of a normaliser."""

    def taught(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            for its, own in zip(self.teacher.parameters(), self.layer.parameters(), strict=True):
                its.mul_(0.5).add_(own, alpha=0.5)
            self.mean *= 0.9
            self.mean += 0.1 * x.mean(0)
            self.last.neg_().copy_(self.last + x[0])
        return self.layer(x) - self.teacher(x) + self.mean + self.last

    module = Layer(taught, mean=torch.ones(4), last=torch.ones(4), teacher=nn.Linear(4, 4).requires_grad_(False))
    assert_as_eager(module, [torch.randn(3, 4)], steps=3)


def test_statistics_of_a_batch_norm_that_other_ops_read_are_as_in_eager() -> None:
    """On several devices, these ops read what the norm has written, although its schema doesn't say that it writes."""

    def read(self: Any, x: Tensor) -> Tensor:
        before = self.norm.running_mean.sum()
        return self.norm(self.layer(x)) + self.norm.running_mean.sin() * self.norm.running_var + before

    def rows(self: Any, x: Tensor) -> Tensor:
        y = functional.batch_norm(self.layer(x), self.rows[0], self.rows[1], training=True)
        return y * self.rows.sum(0)

    for module in (Layer(read, norm=nn.BatchNorm1d(4)), Layer(rows, rows=torch.ones(2, 4))):
        assert_as_eager(module, [torch.randn(6, 4)], steps=3)
    instance = nn.Sequential(nn.Conv1d(4, 4, 3), nn.InstanceNorm1d(4, affine=True, track_running_stats=True))
    assert_as_eager(instance, [torch.randn(2, 4, 8)], steps=3)


def test_the_value_that_a_buffer_had_is_returned() -> None:
    def shifted(self: Any, x: Tensor) -> Any:
        before, self.state = self.state, self.layer(x) + self.state
        return before, self.state, before.t()

    module, x = Layer(shifted, state=torch.ones(4, 4)), torch.randn(4, 4)
    other = copy.deepcopy(module)
    step = step_of(module, [x])
    for _ in range(3):
        with torch.no_grad():
            wanted = other(x)
        assert all(torch.equal(a, b) for a, b in zip(step(x), wanted, strict=True))
        assert torch.equal(module.state, other.state)


def grown(self: Any, x: Tensor) -> Tensor:
    self.cache = torch.cat([self.cache, self.layer(x).detach()])
    return self.layer(x) + self.cache.mean()


def remembered(self: Any, x: Tensor) -> Tensor:
    before = torch.zeros_like(x) if self.plain is None else self.plain[: len(x)]
    y = self.layer(x) + before
    self.plain = y.detach()
    return y


def listed(self: Any, x: Tensor) -> Tensor:
    y = self.layer(x) + sum(self.plain)
    self.plain.append(y.detach())
    return y


def counted(self: Any, x: Tensor) -> Tensor:
    self.plain += 1
    return self.layer(x) / self.plain


def third(self: Any, x: Tensor) -> Tensor:
    """Doubles its output in each third call."""
    self.plain += 1
    return self.layer(x) * (2 if self.plain % 3 == 0 else 1)


def failing(self: Any, x: Tensor) -> Tensor:
    if self.plain:
        raise RuntimeError("called twice")
    self.plain = True
    return self.layer(x)


def made_anew(self: Any, x: Tensor) -> Tensor:
    self.layer.weight = nn.Parameter(self.layer.weight * 2)
    return self.layer(x)


def narrowed(self: Any, x: Tensor) -> Tensor:
    self.mean.resize_(2)
    return self.layer(x)


def shared(function: Any) -> Layer:
    """Its buffer is the very tensor that its layer has as well."""
    module = Layer(function, mean=torch.zeros(4))
    module.layer.register_buffer("own", module.mean)
    return module


def moved(self: Any, x: Tensor) -> Tensor:
    self.mean = 0.9 * self.mean + x.mean(0)
    return self.layer(x) + self.layer.own + self.mean


def moved_together(self: Any, x: Tensor) -> Tensor:
    self.mean = self.layer.own = 0.9 * self.mean + x.mean(0)
    return self.layer(x) + self.layer.own + self.mean


def test_a_shared_buffer_that_all_assign_anew_is_as_in_eager() -> None:
    assert_as_eager(shared(moved_together), [torch.randn(3, 4)], steps=3)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Layer(grown, cache=torch.ones(1, 4)), "the module assigns its buffer 'cache' anew"),
        (shared(moved), r"the module assigns its buffer 'mean' anew, which module 'layer' \(Linear\) shares as 'own'"),
        (
            Layer(lambda self, x: self.layer(x.unsqueeze_(0))),
            r"forward changes the shape of a tensor \(3, 4\) .* as by resh",
        ),
        (
            Layer(narrowed, mean=torch.zeros(4)),
            r"forward changes the shape of a tensor \(4,\) .* to \(2,\), as by resize_",
        ),
        (
            Layer(lambda self, x: torch.tanh(self.layer(x), out=x)),
            r".*out=.*; do it under torch.no_grad\(\) in forward, al",
        ),
        (Layer(made_anew), r"module 'layer' \(Linear\) assigns its parameter 'weight' anew"),
    ],
    ids=["grown", "shared", "input", "resized", "out", "parameter"],
)
def test_state_that_would_be_lost_is_refused(module: nn.Module, message: str) -> None:
    before = copy.copy(vars(module))
    with pytest.raises(CaptureError, match=f"^Layer: {message}"):
        step_of(module, [torch.ones(3, 4)], loss=square)
    assert vars(module) == before


@pytest.mark.parametrize(
    ("forward", "state"),
    [
        (remembered, {"plain": None}),
        (remembered, {"plain": torch.zeros(3, 4)}),
        (listed, {"plain": []}),
        (counted, {"plain": 0}),
        (third, {"plain": 0}),
        (failing, {"plain": False}),
    ],
    ids=["none", "tensor", "list", "number", "later", "error"],
)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_steps_that_depend_on_earlier_steps_are_placed_but_not_run(
    forward: Any, state: dict[str, Any], micro_batches: int
) -> None:
    module = Layer(forward, **state)
    before = copy.copy(vars(module))
    with (
        pytest.warns(NotRunWarning),
        pytest.raises(RunError, match=r"^Layer can be placed, but not run: forward changes \.plain of the module, on"),
    ):
        step_of(module, [torch.ones(3, 4)], loss=square, micro_batches=micro_batches)
    assert vars(module) == before


@pytest.mark.parametrize("run", [False, True])
def test_changes_in_place_of_tensors_that_are_no_buffers_are_refused(run: bool) -> None:
    def halved(self: Any, x: Tensor) -> Tensor:
        self.plain[:2].mul_(0.5)
        return self.layer(x) * self.plain

    def normed(self: Any, x: Tensor) -> Tensor:
        return functional.batch_norm(self.layer(x), self.plain, self.plain, training=True)

    for forward in (halved, normed):
        module = Layer(forward, plain=torch.ones(4))
        with pytest.raises(CaptureError, match=r"test_kept_state.py:\d+: .* no parameter, no buffer and no argument"):
            capture_training(module, [torch.randn(3, 4)], square, run=run)
        assert torch.equal(module.plain, torch.ones(4))


def test_attributes_that_settle_are_left_alone() -> None:
    """Tensors that forward or a hook notes, and what the first step sets for all others."""

    def noted(self: Any, x: Tensor) -> Tensor:
        if self.kind is None:
            self.kind = "square"
        self.last = self.notes["last"] = self.layer(x)
        return self.last if self.kind == "square" else x

    by_name: dict[str, Tensor] = {}
    module = Layer(noted, kind=None, notes={})
    module.layer.register_forward_hook(lambda module, inputs, output: by_name.update(last=output))
    assert_as_eager(module, [torch.randn(3, 4)])
    assert module.kind is None
    assert not module.notes
    assert not hasattr(module, "last")


NOTED: list[Any] = []


class Noting:
    def __init__(self) -> None:
        self.outputs: list[Any] = []

    def note(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self.outputs.append(output)


def test_steps_whose_hooks_fill_lists_are_placed_but_not_run() -> None:
    listed, noting = [], Noting()  # type: ignore[var-annotated]
    for hook, where in (
        (lambda module, inputs, output: listed.append(output), "listed"),
        (lambda module, inputs, output: NOTED.append(output), "NOTED"),
        (noting.note, "Noting"),
    ):
        module = Layer(lambda self, x: self.layer(x))
        module.layer.register_forward_hook(hook)
        says = rf"forward changes .*\.{where} of a hook of module 'layer' \(Linear\), on which later"
        with pytest.warns(NotRunWarning), pytest.raises(RunError, match=says):
            step_of(module, [torch.ones(3, 4)], loss=square)
    assert listed == NOTED == noting.outputs == []


def test_what_is_made_once_is_made_again_by_every_step() -> None:
    def lazily(self: Any, x: Tensor) -> Tensor:
        if self.plain is None:
            self.plain = torch.arange(4.0).cos()
        return self.layer(x) * self.plain

    module, x = Layer(lazily, plain=None), torch.randn(3, 4)
    step = step_of(module, [x], loss=square)
    assert module.plain is None
    wanted = square(module(x)).detach()  # which sets it
    assert not isinstance(module.plain, FakeTensor)
    assert torch.equal(step(x), wanted)


def late(self: Any, one: Tensor, other: Tensor) -> Tensor:
    """Fails in the middle of a step, after statistics and a buffer have changed."""
    self.calls.add_(1)
    y = self.norm(self.words(one)) + self.others(other)
    self.after += 1
    return self.last(y)


def test_a_failed_step_leaves_buffers_as_the_module_does() -> None:
    parts = {"words": nn.Embedding(9, 8), "norm": nn.BatchNorm1d(8), "others": nn.Embedding(9, 8)}
    module = Layer(late, **parts, last=nn.BatchNorm1d(8), calls=torch.zeros(()), after=torch.zeros(()))
    right = torch.arange(5)
    other = copy.deepcopy(module)
    step = step_of(module, [right, right], loss=square)
    for last in (torch.full((5,), 99), right, torch.full((5,), 99)):
        if last is right:
            assert torch.equal(step(right, last), square(other(right, last)).detach())
        else:
            with pytest.raises(RunError, match=r"others/embedding.*IndexError"):
                step(right, last)
            with pytest.raises(IndexError):
                other(right, last)
        assert all(torch.equal(a, b) for a, b in zip(module.buffers(), other.buffers(), strict=True))


def shifted_in_place(self: Any, x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return self.layer(x) + y


def test_tensors_that_share_memory_are_refused_where_one_is_changed() -> None:
    rows = torch.randn(8, 4)
    step = step_of(Layer(shifted_in_place), [rows[:3], rows[3:6]], loss=square)
    step(rows[:3], rows[3:6])
    for other in (rows[:3], rows[2:5]):
        before = rows.clone()
        with pytest.raises(RunError, match=r"^Layer changes value 0 of its arguments .* value 1 .* by \.clone"):
            step(rows[:3], other)
        assert torch.equal(rows, before)
    step(rows[:3], rows[:3].clone())
    step_of(Layer(lambda self, x, y: self.layer(x) + y), [rows, rows], loss=square)(rows, rows)  # nothing is changed
    module = Layer(averaged, mean=torch.zeros(4), count=torch.tensor(0))
    module.mean = module.layer.bias.detach()
    with pytest.raises(RunError, match=r"^Layer changes .mean. in place, and .layer\.bias. shares its memory"):
        step_of(module, [torch.ones(3, 4)], loss=square)(torch.ones(3, 4))


def test_threads_take_turns() -> None:
    module = nn.Sequential(*[nn.Linear(16, 16) for _ in range(6)])
    step = step_of(module, [torch.ones(4, 16)])
    inputs = [torch.full((4, 16), float(k)) for k in range(4)]
    wanted, wrong = [module(x).detach() for x in inputs], []

    def call(k: int) -> None:
        wrong.extend(k for _ in range(40) if not torch.equal(step(inputs[k]), wanted[k]))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong


def test_a_fork_is_told_to_compile_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = nn.Linear(4, 4), torch.ones(2, 4)
    step = step_of(module, [x], loss=square)
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)  # as in a fork
    for call in (step, step.peak_bytes):
        with pytest.raises(RunError, match="Linear was compiled in another process: compile it anew"):
            call(x)


def test_statistics_that_nobody_reads_are_updated() -> None:
    """The loss doesn't read what comes behind the batch norm."""

    def unread(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x)
        return y, self.second(self.norm(y))

    module = Layer(unread, norm=nn.BatchNorm1d(4), second=nn.Linear(4, 2))
    assert_as_eager(module, [torch.randn(8, 4)], lambda output: square(output[0]))
    assert module.norm.num_batches_tracked == 2
