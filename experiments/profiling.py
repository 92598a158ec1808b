"""How well do measured costs predict what wasn't measured, and whole steps?

python -m experiments.profiling [--seconds 60]

Training steps of five small models are profiled together on one core. Held out: median relative error over a model's
signatures when a fifth of all is left out of the fit at a time, the fit being made of all models, or of that model
alone. Step: all ops on one core as the simulator adds them up, over the step as measured; with the signatures of that
model measured, and with none of them (fitted to the other models). Last, the sum over the ops of each one timed alone,
in a loop: on the same tensors (warm), and on copies that together exceed the caches (cold).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Interpreter, Node
from torch.utils._pytree import tree_map

from experiments.command import command
from experiments.tables import machine, markdown, rule
from graphs import inception_v3
from placeto.problem.costs.profiled import Profiled
from placeto.problem.problem import PlacementProblem
from placeto.runtime.devices import open_devices
from placeto.runtime.fitting import Sample, fit, held_out
from placeto.runtime.measure import Measured
from placeto.runtime.profiling import Profile, profile
from placeto.runtime.steps import RealStep, filled, real_training

_CACHES = 64 << 20  # bytes; more than the last cache of the machines that this runs on
_COPIES = 256


@dataclass(frozen=True)
class ProfilingConfig:
    """Profile some models, and compare."""

    seconds: float = 60.0
    """of passes over the steps"""
    loop_seconds: float = 0.02
    """of each op in a loop, twice"""


class Words(nn.Module):
    """A language model: embedding, a recurrent net or a transformer, and a classifier."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(1000, 128), body, nn.Linear(width, 1000)

    def forward(self, words: Tensor) -> Tensor:
        """(B, T) words -> (B T, 1000) logits."""
        out = self.body(self.embedding(words))
        return self.head(out[0] if isinstance(out, tuple) else out).flatten(0, 1)


def steps() -> list[RealStep]:
    """The models, with inputs at random."""
    torch.manual_seed(0)
    entropy = nn.functional.cross_entropy
    sizes = (256, 1024, 512, 512, 10)
    mlp = nn.Sequential(*(layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.GELU())))
    blocks: list[nn.Module] = []
    for a, b in ((3, 16), (16, 32), (32, 64)):
        for c in (a, b):
            blocks += [nn.Conv2d(c, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
        blocks.append(nn.MaxPool2d(2))
    cnn = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(1024, 10))
    lstm = Words(nn.LSTM(128, 256, 2, batch_first=True), 256)
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    transformer = Words(nn.TransformerEncoder(layer, 3), 128)

    def classes(count: int, most: int) -> list[Tensor]:
        return [torch.randint(most, (count,))]

    with filled():
        inception = inception_v3.training_step(inception_v3.Network(2, width=0.5))
    return [
        real_training(mlp, [torch.randn(64, 256)], entropy, targets=classes(64, 10), name="MLP"),
        real_training(cnn, [torch.randn(16, 3, 32, 32)], entropy, targets=classes(16, 10), name="CNN"),
        real_training(lstm, [torch.randint(1000, (16, 24))], entropy, targets=classes(384, 1000), name="LSTM"),
        real_training(
            transformer, [torch.randint(1000, (8, 64))], entropy, targets=classes(512, 1000), name="transformer"
        ),
        real_training(*inception[:2], inception.loss, targets=inception.targets, name="inception_v3"),
    ]


class Alone(Interpreter):
    """Runs a step, and times each of its signatures by itself where it comes first."""

    def __init__(self, one: Measured, seconds: float) -> None:
        super().__init__(one.step.unrolled.traced)
        graph = one.step.capture.graph
        self.signature = {nodes[0]: graph.signatures[op] for op, nodes in enumerate(one.step.unrolled.nodes)}
        self.seconds = seconds
        self.warm: dict[str, float] = {}
        self.cold: dict[str, float] = {}

    def run_node(self, n: Node) -> Any:
        """Time it, if it is new, and run it."""
        signature = self.signature.get(n.name, "")
        if signature and n.op == "call_function" and signature not in self.warm:
            arguments = self.fetch_args_kwargs_from_env(n)
            size = sum(leaf.nbytes for leaf in self._tensors(arguments)) or 1
            copies = [arguments] + [self._copy(arguments) for _ in range(min(_CACHES // size, _COPIES))]
            self.warm[signature] = self._loop(n.target, [arguments])
            self.cold[signature] = self._loop(n.target, copies)
        return super().run_node(n)

    def _loop(self, function: Any, inputs: Sequence[Any]) -> float:
        times: list[float] = []
        end = time.perf_counter() + self.seconds
        while len(times) < 5 or (time.perf_counter() < end and len(times) < 1000):
            positional, named = inputs[len(times) % len(inputs)]
            start = time.perf_counter()
            function(*positional, **named)
            times.append(time.perf_counter() - start)
        return median(times[1:]) * 1e6

    def _tensors(self, arguments: Any) -> list[Tensor]:
        found: list[Tensor] = []
        tree_map(lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None, arguments)
        return found

    def _copy(self, arguments: Any) -> Any:
        return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, arguments)


def alone(one: Measured, seconds: float) -> Alone:
    """The loops of a step, in its device's thread."""

    def loops() -> Alone:
        with torch.no_grad():
            found = Alone(one, seconds)
            found.run(*one.step.leaves, enable_io_processing=False)
            return found

    made: Alone = one.device.run(loops)
    return made


def error(samples: Sequence[Sample], predicted: dict[str, float], own: set[str]) -> str:
    """Median relative error over some signatures."""
    off = [
        abs(predicted[s.signature] / s.time_us - 1) for s in samples if s.signature in own and s.signature in predicted
    ]
    return f"{np.median(off):.3f}"


def row(made: Profile, one: Measured, samples: Sequence[Sample], pooled: dict[str, float], seconds: float) -> list[str]:
    """What the table says of a step."""
    graph, kind = one.step.capture.graph, one.device.kind
    own = {signature for signature in graph.signatures if signature}
    others = [sample for sample in samples if sample.signature not in own]
    fits = {kind: fit(others)}
    unseen = PlacementProblem(graph, made.cluster, Profiled(made.costs.torch, "", (), fits)).single_device_us
    seen = PlacementProblem(graph, made.cluster, made.costs).single_device_us
    loops = alone(one, seconds)
    beside = made.cluster.devices[0].overhead_us * sum(map(bool, graph.signatures))
    in_loops = [sum(of.get(s, 0.0) for s in graph.signatures) + beside for of in (loops.warm, loops.cold)]
    assert one.eager_us is not None
    return [
        one.step.name,
        str(graph.num_ops),
        str(len(own)),
        error(samples, pooled, own),
        error(samples, held_out([sample for sample in samples if sample.signature in own]), own),
        f"{one.step_us / 1e3:.1f}",
        f"{one.eager_us / 1e3:.1f}",
        *(f"{us / one.step_us:.3f}" for us in (seen, unseen, *in_loops)),
    ]


HEAD = [
    "model",
    "ops",
    "signatures",
    "held out",
    "alone",
    "step, ms",
    "eager, ms",
    "predicted",
    "unseen",
    "warm",
    "cold",
]


def main(config: ProfilingConfig, models: Callable[[], list[RealStep]] = steps) -> None:
    """Profile, and print the tables."""
    made = profile(models(), open_devices(["cpu:0"]), config.seconds)
    samples = [Sample(op.signature, op.type, op.flops, op.bytes_accessed, op.time_us["cpu"]) for op in made.costs.ops]
    pooled = held_out(samples)
    rows = [row(made, one, samples, pooled, config.loop_seconds) for one in made.measured]
    print(f"One core of {machine()}; {config.seconds:g} s of passes. Predicted, unseen, warm, cold: over the step.\n")
    print(markdown([HEAD, rule(len(HEAD)), *rows]))
    every = {sample.signature for sample in samples}
    print(f"\nOf all {len(every)} signatures the median held-out error is {error(samples, pooled, every)}.")
    print(f"Overhead {made.cluster.devices[0].overhead_us:.2f} us an op: views and constants, which are no ops.")


if __name__ == "__main__":
    command(main, ProfilingConfig, "profiling", __doc__, "Times are measured.")
