"""A captured step on several devices: a program for each, in the order of a schedule, with queues between them.

Each device runs its program in its own thread. A value for another device goes through a queue as soon as it is made.
CPU cores share the tensor itself. Otherwise it is copied once the sender has computed it: on the stream of a receiving
GPU, or for a core on a separate stream, because the sender's own may have further work by then.
On CPU cores torch's interpreter runs the programs; if an op fails there, Python runs them again to name it. Parameters,
buffers, inputs and constants, and views of them, are on every device that uses them.

If one core draws all random numbers, such as those of dropout, they are from torch's generator. If several cores draw,
each has a generator of its own, which torch's seeds at every step: a generator serves one thread at a time, and drawing
for dropout is a quarter of a small transformer's step on a CPU. So numbers depend on seed and placement, not on timing.

Legend: N ops, D devices.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, nullcontext
from functools import partial
from queue import SimpleQueue
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._pytree import tree_map

from placeto.capture.costing.node_costs import CONSTANT_LIKE, packet_of
from placeto.capture.trace import Capture
from placeto.capture.tracing.dependencies import needed_by
from placeto.capture.tracing.draws import draws
from placeto.capture.tracing.statistics import updates_of
from placeto.errors import RunError
from placeto.problem.messages import quote
from placeto.runtime.interpreter import Interpreted, executable
from placeto.runtime.local_devices import LocalDevice
from placeto.runtime.measuring.meter import Meter
from placeto.runtime.program import Program, node_at
from placeto.runtime.transport.crossing import FAILED, Stopped, receiver, sender_to
from placeto.runtime.transport.sums import as_scheduled
from placeto.runtime.updates import overlapping, put, update_before
from placeto.simulator.schedule import Schedule


class PlacedStep:
    """A captured step that runs on several devices as it was placed.

    Args:
        capture: the captured step.
        schedule: where each op runs, in which order on each device, and what sums of gradients add.
        devices: (D,) devices of this machine.
        stamps: for each device a function that is called before its first call and after each; None = none are timed.

    Raises:
        RunError: the step can't be run, as `Capture.refusal` says, or the order contradicts the graph.
    """

    def __init__(
        self,
        capture: Capture,
        schedule: Schedule,
        devices: Sequence[LocalDevice],
        stamps: Sequence[Callable[[], Any]] | None = None,
    ) -> None:
        if capture.refusal:
            raise RunError(f"{capture.graph.name} can be placed, but not run: {capture.refusal}")
        self.capture, self.devices = as_scheduled(capture, schedule), tuple(devices)
        self.meters: list[Meter] = []  # one for each device while the memory of steps is counted, or none
        plan = _Plan(self.capture, schedule.placement, schedule.device_order, self.devices)
        self.generators = plan.generators()
        self.programs = plan.programs(self.generators, self.meters)
        self.updates = plan.updates
        self._queues, self._owner = plan.queues, plan.owner
        self._outputs = plan.outputs
        self._where = {node: index for index, node in enumerate(plan.inputs)}
        self.homes = {self._where[node]: home for node, home in plan.kept.items()}
        self._stamps = stamps
        self._process = os.getpid()
        self._functions = [executable(program, stamp) for program, stamp in self._each()]
        self.stamps: list[Any] = []  # what the stamps of the last step returned, for each device

    @property
    def crossing(self) -> int:
        """How many values go from one device to another in a step."""
        return len(self._queues)

    def shared(self, leaves: Sequence[Any]) -> tuple[int, int] | None:
        """Return the places of a tensor that the step changes and of one that shares its memory; None without such."""
        read = {place: leaves[place] for node, place in self._where.items() if node.users}
        return overlapping(read, [self._where[update.input] for update in self.updates])

    def settled(self, leaves: Sequence[Any], copies: dict[tuple[int, torch.device], Tensor]) -> list[Any]:
        """Return the values that go into the trace, with parameters and buffers on the devices where they are placed.

        Args:
            leaves: the values that go into the trace.
            copies: copies on other devices, by place among the leaves and device; missing ones are added.

        Raises:
            RunError: a device has too little memory.
        """
        moved = list(leaves)
        with _placing_errors():
            for place, home in self.homes.items():
                if moved[place].device != home:
                    key = place, home
                    moved[place] = copies[key] = copies[key] if key in copies else moved[place].to(home)
        return moved

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        """Run a step with the values that go into the trace (see `capture.arguments.input_leaves`); return its outputs.

        Raises:
            RunError: an op fails, or the thread of a device is gone. The step has then ended on all devices, and the
                next step can be run.
        """
        self.check_process()
        for generator in self.generators.values():
            generator.manual_seed(int(torch.randint(2**62, ())))
        with _placing_errors():
            moved = [program.moved(leaves) for program in self.programs]
        try:
            results = self._results(moved)
        except RunError as error:
            update_before(error.node, self.capture.traced, self._where, leaves)
            raise
        if self._stamps is not None:
            self.stamps = [stamps for _, stamps in results]
            results = [values for values, _ in results]
        values_of = [
            dict(zip(program.outputs, values, strict=True))
            for program, values in zip(self.programs, results, strict=True)
        ]

        def value(node: Any) -> Any:
            if not isinstance(node, Node):
                return node
            return leaves[self._where[node]] if node in self._where else values_of[self._owner[node]][node]

        for place, node in ((self._where[update.input], update.value) for update in self.updates):
            if value(node).shape != leaves[place].shape:  # which torch's kernels for shapes don't tell
                what = quote(self.capture.paths[place]) if place < len(self.capture.paths) else "an argument"
                raise RunError(
                    f"{self.capture.graph.name} gives {what} another shape, as observers for quantization do in their "
                    "first step: call the module once, then place it again"
                )
        put(self.updates, [value(update.value) for update in self.updates], self._where, leaves)
        return [value(node) for node in self._outputs]

    def ready(self, leaves: Sequence[Any], copies: dict[tuple[int, torch.device], Tensor]) -> Callable[[], None]:
        """Return a function that runs a step and waits for its end; see `settled` for the arguments."""
        settled = self.settled(leaves, copies)

        def run() -> None:
            self.run(settled)
            self.synchronize()

        return run

    def synchronize(self) -> None:
        """Wait until all devices are done: GPUs compute on after a step has returned."""
        for device in self.devices:
            device.synchronize()

    def check_process(self) -> None:
        """Refuse to run in a fork of the process that made the step, which doesn't have its threads.

        Raises:
            RunError: this process is such a fork.
        """
        if os.getpid() != self._process:
            raise RunError(f"{self.capture.graph.name} was compiled in another process: compile it anew in this fork")

    def _each(self) -> Iterator[tuple[Program, Callable[[], Any] | None]]:
        stamps: Sequence[Callable[[], Any] | None] = self._stamps if self._stamps else [None] * len(self.programs)
        return zip(self.programs, stamps, strict=True)

    def _results(self, moved: Sequence[Sequence[Any]]) -> list[Any]:
        """Run all programs; if an op fails in the interpreter, Python runs them again, whose error names the op."""
        try:
            return self._attempt(self._functions, moved)
        except RunError:
            if not any(isinstance(function, Interpreted) for function in self._functions):
                raise
            return self._attempt([program.compile(stamp) for program, stamp in self._each()], moved)

    def _attempt(self, functions: Sequence[Callable[..., Any]], moved: Sequence[Sequence[Any]]) -> list[Any]:
        """Run all programs at the same time; return what each of them returns."""
        try:
            futures = [
                device.thread.submit(self._work, number, functions[number], moved[number])
                for number, device in enumerate(self.devices)
            ]
        except RuntimeError as problem:
            self._fail(range(len(self.devices)))
            raise RunError(f"the thread of a device is gone: {problem}") from problem
        wait(futures)
        errors = [future.exception() for future in futures]
        failed = [error for error in errors if error is not None and not isinstance(error, Stopped)]
        if failed or any(errors):
            self._drain()
            error = failed[0] if failed else RunError("a device has stopped")
            raise error if isinstance(error, RunError) else RunError(str(error)) from error
        return [future.result() for future in futures]

    def _work(self, number: int, function: Callable[..., Any], leaves: Sequence[Any]) -> Any:
        try:
            with torch.no_grad(), self.meters[number] if self.meters else nullcontext():
                return function(*leaves)
        except Stopped:
            self._fail([number])
            raise
        except BaseException as problem:
            self._fail([number])
            raise self._described(number, problem) from problem

    def _fail(self, numbers: Iterable[int]) -> None:
        """Let all devices that wait for a value of these devices fail as well."""
        for (_, sender, _), queue in self._queues.items():
            if sender in numbers:
                queue.put(FAILED)

    def _drain(self) -> None:
        for queue in self._queues.values():
            while not queue.empty():
                queue.get()

    def _described(self, number: int, problem: BaseException) -> RunError:
        """Return an error that names the op in the line of the generated program where a problem comes from."""
        calls = (node_at(frame, line) for frame, line in walk_tb(problem.__traceback__))
        node = next((call for call in calls if call is not None), None)
        graph, op_of = self.capture.graph, {name: op for op, names in enumerate(self.capture.nodes) for name in names}
        where = f"op {quote(graph.op_names[op_of[node.name]])}" if node is not None and node.name in op_of else "a call"
        reason = next(iter(str(problem).strip().splitlines()), "")
        error = RunError(f"{where} on {self.devices[number].name}: {type(problem).__name__}: {reason}")
        error.node = node
        return error


@contextmanager
def _placing_errors() -> Iterator[None]:
    """Within it, an error when parameters and inputs go to their devices becomes a RunError."""
    try:
        yield
    except RuntimeError as problem:
        reason = next(iter(str(problem).strip().splitlines()), "")
        raise RunError(f"parameters and inputs can't be brought to their devices: {reason}") from problem


class _Plan:
    """Which calls each device makes, in which order, and what goes between them."""

    def __init__(
        self,
        capture: Capture,
        placement: np.ndarray,
        order: Sequence[Sequence[int] | np.ndarray],
        devices: Sequence[LocalDevice],
    ) -> None:
        self.capture, self.devices = capture, devices
        nodes = {node.name: node for node in capture.traced.graph.nodes}
        *_, end = nodes.values()
        self.inputs = [node for node in nodes.values() if node.op == "placeholder"]
        outputs: Any = end.args[0]
        self.outputs = list(outputs)
        self.updates = updates_of(capture.traced)
        values = [update.value for update in self.updates]
        results = [node for node in (*self.outputs, *values) if isinstance(node, Node)]
        needed = needed_by(results)
        self.home: dict[Node, int] = {}  # device of each call; other calls are made wherever they are needed
        self.kept: dict[Node, torch.device] = {}  # device of each parameter and buffer
        for op, names in enumerate(capture.nodes):
            if nodes[names[0]].op == "placeholder":
                self.kept[nodes[names[0]]] = devices[int(placement[op])].torch_device
            else:
                self.home |= {nodes[name]: int(placement[op]) for name in names}
        self.of_ops = set(self.home)
        stray: dict[int, list[Node]] = defaultdict(list)
        for node in nodes.values():
            if node in needed and node.op == "call_function" and node not in self.home and not is_constant(node):
                homes = [self.home[source] for source in node.all_input_nodes if source in self.home]
                if homes:
                    self.home[node] = homes[0]
                    stray[homes[0]].append(node)
        for node in self.inputs[: len(capture.paths)]:
            if node not in self.kept and node.users:  # a buffer, which is no op of the graph
                number = next((self.home[user] for user in node.users if user in self.home), 0)
                self.kept[node] = devices[number].torch_device
        self.calls: list[list[Node]] = [[] for _ in devices]
        self.done: list[set[Node]] = [set(self.inputs) for _ in devices]
        self.queues: dict[tuple[Node, int, int], SimpleQueue[Any]] = {}  # by (value, sender, receiver)
        self.owner: dict[Node, int] = {}  # which program returns each output
        for number, ops in enumerate(order):
            for names in ((), *(capture.nodes[op] for op in ops)):  # strays may come before the first op
                for node in (nodes[name] for name in names):
                    if node in needed and self.home.get(node) == number:
                        self._call(node, number)
                for node in [node for node in stray[number] if self.done[number].issuperset(node.all_input_nodes)]:
                    self._call(node, number)
                    stray[number].remove(node)
            for node in stray[number]:
                self._call(node, number)
        for node in results:
            if node not in self.inputs:
                number = self.owner[node] = self.home.get(node, 0)
                self._need(node, number)

    def generators(self) -> dict[int, torch.Generator]:
        """Return a generator for each core that draws random numbers; none if only one does, which uses torch's."""
        drawing = [
            number
            for number, calls in enumerate(self.calls)
            if self.devices[number].is_cpu
            and any(draws(call) and self.home.get(call, number) == number for call in calls)
        ]
        return {number: torch.Generator() for number in drawing} if len(drawing) > 1 else {}

    def programs(self, drawn_by: Mapping[int, torch.Generator], meters: Sequence[Meter]) -> list[Program]:
        """Return (D,) programs, of which each returns a list of the outputs that its device makes.

        Args:
            drawn_by: the generators of random numbers, by device.
            meters: the meters of the step that runs; with some, CPU cores share no memory.
        """
        programs = []
        for number, device in enumerate(self.devices):
            receives, sends = {}, defaultdict(list)
            for (node, sender, taker), queue in self.queues.items():
                if taker == number:
                    receives[node] = receiver(queue, self.devices[sender], device)
                if sender == number:
                    sends[node].append(sender_to(queue, device, self.devices[taker], meters))
            constants = {node: _constant(node, device.torch_device) for node in self.calls[number] if is_constant(node)}
            outputs = [node for node, owner in self.owner.items() if owner == number]
            programs.append(
                Program(
                    tuple(self.inputs),
                    tuple(self.calls[number]),
                    outputs,
                    device.torch_device,
                    receives | constants,
                    sends,
                    drawn_by.get(number),
                )
            )
        return programs

    def _call(self, node: Node, number: int) -> None:
        """Add a call to those of a device, behind all that it needs there."""
        if node in self.done[number]:
            return
        for source in () if is_constant(node) else node.all_input_nodes:
            self._need(source, number)
        self.done[number].add(node)
        self.calls[number].append(node)

    def _need(self, node: Node, number: int) -> None:
        if node in self.done[number]:
            return
        home = self.home.get(node, number)
        if home == number:
            if node in self.of_ops:
                raise RunError(f"the order of {self.devices[number].name} contradicts the graph at {node.name}")
            self._call(node, number)
        else:
            self.queues[node, home, number] = SimpleQueue()
            self.done[number].add(node)
            self.calls[number].append(node)


def is_constant(node: Node) -> bool:
    """Whether a call reads no more than the shape of a tensor."""
    return packet_of(node) in CONSTANT_LIKE and bool(node.all_input_nodes)


def _constant(node: Node, device: torch.device) -> Callable[[], Any]:
    """Return a function that makes the call on a device, with tensors without memory as its arguments."""

    def shape_of(value: Any) -> Any:
        if not isinstance(value, Node):
            return value
        like = value.meta["val"]
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")

    arguments = tree_map(shape_of, list(node.args), is_leaf=lambda value: isinstance(value, Node))
    function: Any = node.target
    return partial(function, *arguments, **{**node.kwargs, "device": device})
