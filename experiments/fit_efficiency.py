"""How far do ops stay below datasheets, by device, dtype and kind: the table of the default cost model.

python -m experiments.fit_efficiency [--data ../shared/data/costs] [--table placeto/problem/costs/efficiency.json]

Fitted to measured ops alone; no step of a model is looked at. time = fixed + max(flops / (peak * compute * r^slope),
bytes / (bandwidth * memory)), r being the ratio of the two terms at full speed: least absolute logarithmic error with a
weak pull towards the constant and no slope, from rows of at least three times their source's floor, which is the time
that it gives to an empty op; of kinds with few rows so long, from those that would take long at full speed. Errors are
those of rows left out, every fifth in turn. An entry of device "*" is the mean over devices, of what computes over
those that aren't short of power; memory-bound kinds have one for all dtypes.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from experiments.command import command
from experiments.tables import markdown
from placeto.problem.cluster import boards as devices
from placeto.problem.costs.efficiency import ANY, FORMAT
from placeto.problem.files import write_text
from placeto.problem.graph.label_values import CHANNELS_LAST

FEWEST = 8
"""Rows of an entry."""
_HUBER = 0.2  # of logarithms
_PRIOR = 3e-3
_PRIOR_OF_SLOPE = 10.0
CONSTANT = 0.582
"""What `constant_of` gave on 2026-11-22. All answers on the K80 depend on it, of which no op was measured: it isn't
renewed with the rest."""
_FIXED_US = 2.0  # of kinds without a source that times kernels alone: the shortest op in traces
_KERNELS_ALONE = ("DeepBench", "Vidur")
# us that a source gives to an empty op, as SOURCES.md says, where its shortest rows don't tell
_FLOORS = {"DeepBench": 0.0, "Vidur": 0.0, "Placeto": 0.0, ("PipeDream", "fwd"): 270.0, "PipeDream": 70.0}
_HIGHEST_FLOOR_US = 65.0
_LONG = 3.0
"""What is measured of an op must be so many floors."""
_SHORT = ("depthwise_convolution", "batch_norm", "max_pool", "avg_pool")
_LONG_AT_FULL_SPEED = (1.0, 0.25, 0.1)
"""Of kinds with few long ops that rule would choose the slow ones of each size: of depthwise convolutions forward it
leaves 3 %. They are chosen by what they would take at full speed, in floors of the kind's own: the first of these that
leaves `FEWEST`."""
_SOURCES = {
    "DeepBench": "baidu-research/DeepBench da81ba7 results/train/DeepBench_NV_{V100,P100}.xlsx (Apache-2.0)",
    "Placeto": "this project, experiments/data/h200_ops.csv.gz: NVIDIA H200, torch 2.11, CUDA 13.0, cuDNN 9.19",
    "NeuSight": "sitar-lab/NeuSight 6945927 scripts/asplos/data/dataset (MIT)",
    "NeuSight-labels": "sitar-lab/NeuSight 6945927 scripts/asplos/label (MIT)",
    "PipeDream": "msr-fiddle/pipedream 7db6a1c profiler/image_classification/profiles (MIT)",
    "Vidur": "microsoft/vidur 7d47513 data/profiling/compute (MIT)",
    "gemm-zoo": "AD2605/gemm-zoo benchmarks.md: cublasLt in tf32 on the RTX 4060 Ti; cited",
    "transformers-benchmarks": "mli/transformers-benchmarks 04df81d micro_bench.ipynb: RTX 3090 Ti; cited",
}


class Board(NamedTuple):
    """What a source's device is: the kind that its factors are for, and its own datasheet."""

    kind: str
    float32: float  # FLOP/s
    float16: float
    bandwidth: float  # bytes/s
    tf32: float = 0.0


def _preset(kind: str) -> Board:
    device = next(d for d in vars(devices).values() if isinstance(d, devices.Device) and d.kind == kind)
    return Board(kind, device.peak(), device.peak("float16"), device.memory_bandwidth, device.peak("tf32"))


BOARDS = {
    "P100": _preset("p100"),
    "V100": _preset("v100"),
    "V100-PCIe": Board("v100", 14e12, 112e12, 900e9),  # NVIDIA V100 datasheet, 2017
    "A100-40P": Board("a100", 19.5e12, 312e12, 1555e9),  # NVIDIA A100 40 GB PCIe datasheet, 2020
    "A100-80P": Board("a100", 19.5e12, 312e12, 1935e9),  # NVIDIA A100 80 GB PCIe datasheet, 2021
    "H100": _preset("h100"),
    "H200": _preset("h200"),
    "T4": _preset("t4"),
    "L4": _preset("l4"),
    "P4": Board("p4", 5.5e12, 5.5e12, 192e9),  # NVIDIA Tesla P4 datasheet, 2016
}
_KINDS = {
    "conv": "convolution",
    "dwconv": "depthwise_convolution",
    "gconv": "grouped_convolution",
    "bmm": "batched_matmul",
    "batch_norm": "batch_norm",
    "ln": "layer_norm",
    "layer_norm": "layer_norm",
    "AvgPool2d": "avg_pool",
    "MaxPool2d": "max_pool",
}
_TWO_WAYS = (  # kinds with a backward of their own
    "convolution", "depthwise_convolution", "grouped_convolution", "batch_norm", "layer_norm", "softmax", "max_pool",
    "avg_pool",
)  # fmt: skip
LOW_POWER = ("p4", "t4", "l4")
"""Boards of 70 to 75 W, which don't hold the clock of their datasheet's peak while they compute: in no mean of that."""
SAME = {"h200": "h100", "h100": "h200", "a100-40gb": "a100"}
"""Chips that are the same as a measured one but for their memory: its entries hold where they have none."""
IN_NO_MEAN = ("h200",)
"""Boards whose chip is in the means already, by another board."""
_OURS, _OWN = "Placeto", Path(__file__).parent / "data" / "h200_ops.csv.gz"
_LEFT_OUT = ("gather", "recurrent")  # captured gathers count whole tables, and LSTMs are captured by cell
_ALIGNED = 8
"""Products on tensor cores are fitted where all sizes are multiples of it: others take up to 8 times as long."""
_K80_CLOCK = 562 / 821
"""Base clock over the boost clock behind the K80's peak here (NVIDIA, Tesla K80 board specification, 2015): of a board
whose two dies share 300 W only the first is promised. No op was measured on it."""


@dataclass(frozen=True)
class Op:
    """A measured op."""

    source: str
    device: str
    dtype: str
    kind: str
    compute_us: float  # at the peak
    memory_us: float  # at the full bandwidth
    floor_us: float  # what of its time isn't the op's
    us: float
    model: str = ""  # that it was measured in

    @property
    def roofline_us(self) -> float:
        """At full speed."""
        return max(self.compute_us, self.memory_us)


class Product(NamedTuple):
    """A square matrix product that others timed."""

    source: str
    kind: str  # of the devices that it stands for
    peak: float  # FLOP/s of the board in the dtype, with 32-bit sums
    bandwidth: float  # bytes/s
    size: int  # bytes of a number
    n: int
    rate: float  # FLOP/s

    def op(self) -> Op:
        """As a measured op."""
        flops, moved = 2e6 * self.n**3, 3e6 * self.size * self.n**2
        return Op(
            self.source, self.kind, "", "matmul", flops / self.peak, moved / self.bandwidth, 0.0, flops / self.rate
        )


_3090_TI, _4060_TI = ("transformers-benchmarks", "rtx3090"), ("gemm-zoo", "rtx4090")
PRODUCTS = [  # peaks: NVIDIA's product pages of both boards, 2022 and 2023
    *(Product(*_3090_TI, 80e12, 1008e9, 2, n, rate) for n, rate in ((2048, 71.5e12), (8192, 81.3e12))),
    *(Product(*_3090_TI, 40e12, 1008e9, 4, n, rate) for n, rate in ((2048, 31.3e12), (8192, 42.1e12))),
    *(
        Product(*_4060_TI, 22.1e12, 288e9, 4, n, rate)
        for n, rate in ((2048, 21.2e12), (4096, 22.3e12), (8192, 23.4e12))
    ),
]
"""Of boards of the same chip or generation as these kinds, of which no other op was measured. GeForce boards add
products up in 32 bits at half their rate: what feeds their tensor cores is twice as fast in proportion, so that they
come close to a datasheet that understates their clock."""


class Fit(NamedTuple):
    """Factors as logarithms, and the fixed time."""

    compute: float
    memory: float
    slope: float
    fixed_us: float
    ratios: tuple[float, float]  # measured ones, of computing to accessing

    def predict(self, ops: Sequence[Op]) -> np.ndarray:
        """Microseconds, with the source's floor."""
        compute, memory, floor = (
            np.array([getattr(op, key) for op in ops]) for key in ("compute_us", "memory_us", "floor_us")
        )
        share = np.exp(self.compute) * np.clip(compute / memory, *self.ratios) ** self.slope
        kernel = np.maximum(compute / share, memory / np.exp(self.memory))
        return np.asarray(floor + self.fixed_us + kernel)


@dataclass(frozen=True)
class FitEfficiency:
    """Fit the table of efficiencies."""

    data: Path = Path("../shared/data/costs")
    """folder with op_times.csv.gz"""
    table: Path = Path("placeto/problem/costs/efficiency.json")
    """where the table goes"""


def read_ops(folder: Path) -> list[Op]:
    """The measured ops: others', and the project's own."""
    rows = []
    for path in (folder / "op_times.csv.gz", _OWN):
        with gzip.open(path, "rt") as file:
            rows += [row for row in csv.DictReader(file) if row["kind"] not in _LEFT_OUT]
    shortest: dict[tuple[str, str], float] = defaultdict(lambda: _HIGHEST_FLOOR_US)
    for row in rows:
        place = row["source"], row["device"]
        shortest[place] = min(shortest[place], float(row["floor"]))
    ops = []
    for row in rows:
        source, board = row["source"], BOARDS[row["device"]]
        floor = _FLOORS.get((source, row["phase"]), _FLOORS.get(source, shortest[source, row["device"]]))
        kind = _KINDS.get(row["op"], row["kind"])
        floor = float(row["floor"]) if kind in _SHORT and source != _OURS else floor
        if row["phase"] != "fwd" and kind in _TWO_WAYS:
            kind += "_backward"
        name = {"fp32": "float32", "tf32": "tf32"}.get(row["dtype"], "float16")
        of_cores = source == _OURS and name != "float32" and kind == "matmul"
        if of_cores and any(int(size) % _ALIGNED for size in row["shape"].split()[0].split("x")):
            continue
        if row.get("layout") == "cl" and "convolution" in kind:
            kind = f"{CHANNELS_LAST}_{kind}"
        compute, memory = float(row["flops"]) / getattr(board, name) * 1e6, float(row["bytes"]) / board.bandwidth * 1e6
        dtype = name if compute else ANY
        ops.append(Op(source, board.kind, dtype, kind, compute, memory, floor, float(row["us"]), row["model"]))
    return ops


def long_enough(ops: Sequence[Op]) -> list[Op]:
    """Those of a kind whose time isn't mostly their source's floor."""
    if not ops[0].kind.startswith(_SHORT):
        return [op for op in ops if op.us >= _LONG * op.floor_us]
    for least in _LONG_AT_FULL_SPEED:
        found = [op for op in ops if op.roofline_us >= least * op.floor_us]
        if len(found) >= FEWEST:
            break
    return found


def fit(ops: Sequence[Op], constant: float, fixed_us: float | None = None) -> Fit:
    """Factors that fit ops best; the fixed time too unless it is given."""
    measured, prior = np.log([op.us for op in ops]), np.log(constant)
    low, high = np.quantile([op.compute_us / op.memory_us for op in ops], [0.05, 0.95])
    computes = high > 0

    def made(x: np.ndarray) -> Fit:
        fixed = float(np.exp(x[-1])) if fixed_us is None else fixed_us
        ratios = (float(low), float(high)) if computes else (1.0, 1.0)
        return Fit(float(x[0]), float(x[1]), float(x[2]) if computes else 0.0, fixed, ratios)

    def loss(x: np.ndarray) -> float:
        error = np.abs(np.log(made(x).predict(ops)) - measured)
        huber = np.where(error < _HUBER, error**2 / (2 * _HUBER), error - _HUBER / 2).mean()
        pull = _PRIOR * (((x[:2] - prior) ** 2).sum() + _PRIOR_OF_SLOPE * made(x).slope ** 2)
        return float(huber + pull + max(x[1], 0.0))

    tail = [1.0] if fixed_us is None else []
    starts = [[prior, prior - less, *([0.1] if computes else []), *tail] for less in (0.0, 1.5)]
    options = {"maxiter": 2000, "maxfev": 2000}
    found = (minimize(loss, start, method="Nelder-Mead", options=options) for start in starts)
    return made(min(found, key=lambda one: one.fun).x)


_fit = cache(fit)  # what is left out of a table leaves most of its groups as they are


def median_error(predicted: np.ndarray, ops: Sequence[Op]) -> float:
    """Median of |predicted / measured - 1|."""
    return float(np.median(np.abs(predicted / np.array([op.us for op in ops]) - 1)))


def held_out_error(ops: Sequence[Op], make: Callable[[Sequence[Op]], Fit]) -> float:
    """Median error of ops that the fit hasn't seen: every fifth in turn."""
    predicted = np.empty(len(ops))
    for fold in range(5):
        kept = [op for i, op in enumerate(ops) if i % 5 != fold]
        predicted[fold::5] = make(kept).predict(ops[fold::5])
    return median_error(predicted, ops)


def constant_of(ops: Sequence[Op]) -> float:
    """The one share of roofline: the median over devices and kinds of each's median."""
    groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for op in ops:
        if op.us >= _LONG * op.floor_us:
            groups[op.device, op.dtype, op.kind].append(op.roofline_us / (op.us - op.floor_us))
    return float(np.median([np.median(shares) for shares in groups.values() if len(shares) >= FEWEST]))


def entries(ops: Sequence[Op], constant: float, errors: bool = True) -> Iterator[dict[str, Any]]:
    """The entries of all devices, dtypes and kinds with enough rows, then their means."""
    groups: dict[tuple[str, str, str], list[Op]] = defaultdict(list)
    for op in ops:
        groups[op.device, op.dtype, op.kind].append(op)
    groups = {key: long_enough(group) for key, group in sorted(groups.items())}
    groups = {key: group for key, group in groups.items() if len(group) >= FEWEST}
    fixed: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for (device, dtype, kind), group in groups.items():
        if len(alone := [op for op in group if op.source in _KERNELS_ALONE]) >= FEWEST:
            for place in ((device, dtype, _family(kind)), (dtype, _family(kind))):
                fixed[place].append(_fit(tuple(alone), constant).fixed_us)
    made: list[dict[str, Any]] = []
    for (device, dtype, kind), group in groups.items():
        family = _family(kind)
        like = "float16" if dtype == "tf32" else dtype
        fixed_us = float(np.median(fixed.get((device, dtype, family)) or fixed.get((like, family)) or [_FIXED_US]))

        def make(some: Sequence[Op], fixed_us: float = fixed_us) -> Fit:
            return _fit(tuple(some), constant, fixed_us)

        found = make(group)
        entry = _entry(device, dtype, kind, found)
        entry |= {
            "rows": len(group),
            "roofline_error": round(median_error(np.array([op.roofline_us for op in group]), group), 3),
            "held_out_error": round(held_out_error(group, make), 3) if errors else None,
            "sources": sorted({op.source for op in group}),
        }
        made.append(entry)
    yield from made
    for dtype, kind in sorted({(entry["dtype"], entry["kind"]) for entry in made}):
        alike = [entry for entry in made if (entry["dtype"], entry["kind"]) == (dtype, kind)]
        alike = [entry for entry in alike if entry["device"] not in IN_NO_MEAN]
        if not alike:
            continue
        if dtype != ANY:
            alike = [entry for entry in alike if entry["device"] not in LOW_POWER] or alike
        compute, memory = (float(np.log([entry[key] for entry in alike]).mean()) for key in ("compute", "memory"))
        slope = float(np.mean([entry.get("slope", 0.0) for entry in alike]))
        low, high = (float(np.median([entry.get("ratios", (1.0, 1.0))[end] for entry in alike])) for end in (0, 1))
        mean = Fit(compute, memory, slope, float(np.median([entry["fixed_us"] for entry in alike])), (low, high))
        yield _entry(ANY, dtype, kind, mean) | {"devices": [entry["device"] for entry in alike]}
        if (dtype, kind) == ("float16", "matmul"):
            yield from _by_products(mean)


def _by_products(mean: Fit) -> Iterator[dict[str, Any]]:
    """Entries of boards with measured large products only: the mean, with the share of the peak that these had."""
    for kind in dict.fromkeys(product.kind for product in PRODUCTS):
        ops = [product.op() for product in PRODUCTS if product.kind == kind]
        more = float(np.log(mean.predict(ops) / [op.us for op in ops]).mean())
        found = mean._replace(compute=mean.compute + more)
        sources = sorted({op.source for op in ops})
        yield _entry(kind, "float16", "matmul", found) | {"rows": len(ops), "sources": sources}


def _family(kind: str) -> str:
    """Kinds with one fixed time: both ways, all convolutions, all matrix products."""
    return kind.removesuffix("_backward").rpartition("_")[2]


def _entry(device: str, dtype: str, kind: str, found: Fit) -> dict[str, Any]:
    factors = {"compute": round(float(np.exp(found.compute)), 3), "memory": round(float(np.exp(found.memory)), 3)}
    size = {"slope": round(found.slope, 3), "ratios": [float(f"{ratio:.2g}") for ratio in found.ratios]}
    entry = {"device": device, "dtype": dtype, "kind": kind, **factors, "fixed_us": round(found.fixed_us, 1)}
    return entry | (size if found.slope else {})


def table(ops: Sequence[Op]) -> dict[str, Any]:
    """The document that `placeto.problem.costs.efficiency.load_efficiency` reads."""
    return {
        "format": FORMAT,
        "made_by": "python -m experiments.fit_efficiency",
        "formula": "fixed_us + max(flops / (peak * compute * ratio^slope), bytes / (memory bandwidth * memory))",
        "sources": _SOURCES,
        "constant": CONSTANT,
        "constants": {"k80": round(CONSTANT * _K80_CLOCK, 3)},
        "sustained": {"h100": 0.5},  # chosen by steps on H100: docs/history.md
        "same": SAME,
        "entries": list(entries(ops, CONSTANT)),
    }


def main(config: FitEfficiency) -> None:
    """Fit, print the table, write it."""
    ops = read_ops(config.data)
    document = table(ops)
    made, constant = document["entries"], document["constant"]
    head, tail = json.dumps({**document, "entries": []}, indent=1).rsplit("[]", 1)
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in made)
    write_text(f"{head}[\n{lines}\n ]{tail}\n", config.table)
    predicted = np.array([op.floor_us + op.roofline_us / constant for op in ops])
    print(f"{len(ops)} ops. Constant {constant:.3f}: median error {median_error(predicted, ops):.1%} over all ops.\n")
    keys = [key for key in made[0] if key != "sources"]
    keys[6:6] = ["slope", "ratios"]
    print(markdown([keys, *([str(entry.get(key, "")) for key in keys] for entry in made)]))


if __name__ == "__main__":
    command(main, FitEfficiency, "fit_efficiency", __doc__)
