"""Measured costs: times of op signatures by kind of device, and fits for ops that weren't measured.

`placeto profile` writes the files (format "placeto.costs/1"): see `placeto.runtime.measuring.profiling`.

Legend: N ops, D devices.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, NotRequired

import numpy as np
from pydantic import with_config

from placeto.errors import CostsError
from placeto.problem.checks import CLOSED, Number, Record, Text, read_document
from placeto.problem.cluster import Cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.json_files import read_json, write_json
from placeto.problem.messages import listed, quote, within

FORMAT = "placeto.costs/1"
OTHERS = "*"  # the op type of the fit of all types together


@with_config(CLOSED)
@dataclass(frozen=True)
class OpCost:
    """One op signature, and its measured times."""

    signature: Text  # key of the op's time: op, shapes, strides, dtypes, arguments
    type: Text  # type of the op
    flops: Number  # its work in FLOPs
    bytes_accessed: Number  # bytes that it reads and writes
    time_us: dict[Text, Number]  # kind of device -> microseconds


@with_config(CLOSED)
@dataclass(frozen=True)
class Fit:
    """Time of an op that wasn't measured: ``fixed_us + us_per_flop * flops + us_per_byte * bytes_accessed``."""

    fixed_us: Number  # microseconds of each op
    us_per_flop: Number  # microseconds of each FLOP
    us_per_byte: Number  # microseconds of each byte

    def time_us(self, flops: float, bytes_accessed: float) -> float:
        """Microseconds of an op; infinite if they exceed all floats."""
        return self.fixed_us + self.us_per_flop * flops + self.us_per_byte * bytes_accessed


@dataclass(frozen=True, eq=False)
class Profiled:
    """Measured costs: an op takes the time of its signature, or if it wasn't measured, the time by the fit of its type.

    An op without signature, FLOPs and bytes takes no time, such as a parameter, or a view in files without signatures.
    """

    torch: str  # version of torch, such as 2.13.0
    machine: str  # the machine of the measurements, in words
    ops: tuple[OpCost, ...]
    fits: Mapping[str, Mapping[str, Fit]]  # kind of device -> op type, or "*" -> fit
    steps: tuple[Mapping[str, Any], ...] = ()  # how well whole steps are predicted; only for people who read the file
    path: str = ""  # the file that the costs were read from, for messages

    @cached_property
    def name(self) -> str:
        """The name of the model, and a hash of all that decides its times."""
        content = [[op.signature, sorted(op.time_us.items())] for op in self.ops]
        fits = [[kind, sorted((key, *vars(fit).values()) for key, fit in of.items())] for kind, of in self.fits.items()]
        digest = hashlib.sha256(json.dumps([sorted(content), sorted(fits)]).encode()).hexdigest()
        return f"profiled {digest[:16]}"

    def op_time_us(self, graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
        """(N, D) float64, microseconds.

        Raises:
            CostsError: the cluster has a kind of device on which nothing was measured.
        """
        columns = {}
        for device in cluster.devices:
            if device.kind not in self.fits:
                what = f"device {quote(device.name)} of cluster {quote(cluster.name)} is of kind {quote(device.kind)}"
                raise CostsError(f"{self.path or 'costs'}: {what}; measured were {listed(list(self.fits))}")
            if device.kind not in columns:
                columns[device.kind] = self._of_kind(graph, device.kind)
        return np.stack([columns[device.kind] for device in cluster.devices], axis=1)

    def _of_kind(self, graph: ComputationGraph, kind: str) -> np.ndarray:
        """(N,) float64, microseconds of each op on a kind of device."""
        measured = {op.signature: op.time_us[kind] for op in self.ops if kind in op.time_us}
        fits = self.fits[kind]
        time = np.zeros(graph.num_ops)
        ops = zip(graph.signatures, graph.op_types, graph.flops.tolist(), graph.bytes_accessed.tolist(), strict=True)
        for i, (signature, op_type, flops, accessed) in enumerate(ops):
            if signature in measured:
                time[i] = measured[signature]
            elif signature or flops or accessed:
                time[i] = fits.get(op_type, fits[OTHERS]).time_us(flops, accessed)
        return time


class StepRecord(Record):
    """How well a step is predicted."""

    name: Text  # name of the graph
    kind: Text  # kind of device
    signatures: Number  # number of its signatures
    held_out_error: Number | None  # median error of fits that were made without the step
    predicted_us: Number  # sum of the times of its ops
    measured_us: Number  # time of the step, op by op
    eager_us: NotRequired[Number | None]  # time of the step as torch runs it. Default: not measured


class CostsRecord(Record):
    """The content of a file of measured costs."""

    torch: Text  # torch version that was measured, without its build. The installed version must be the same
    machine: NotRequired[Text]  # description of the machine in words. Default: `""`
    steps: NotRequired[list[StepRecord]]  # what was run, for the reader. Default: `[]`
    fits: dict[Text, dict[Text, Fit]]  # kind of device -> op type, or `*` for all other types -> fit
    ops: list[OpCost]  # the measured ops


def load_profiled(path: str | Path) -> Profiled:
    """Read a file of measured costs.

    Raises:
        CostsError: the file has no measured costs, or costs under another version of torch; the message names file and
            field.
        OSError: the file can't be read.
    """
    document = read_json(path, CostsError)
    with within(CostsError, path):
        values = read_document(document, FORMAT, "a file of costs", CostsRecord, CostsError)
        if values["torch"] != (ours := torch_version()):
            other = f"measured under torch {quote(values['torch'])}, this is {ours}"
            raise CostsError(f"{other}: measure again, with `placeto profile`")
        ops, fits = tuple(values["ops"]), values["fits"]
        for kind in fits:
            if OTHERS not in fits[kind]:
                raise CostsError(f"fits[{quote(kind)}]: {quote(OTHERS)}, the fit of all other types, is missing")
        for op in ops:
            for kind in op.time_us:
                if kind not in fits:
                    raise CostsError(f"op {quote(op.signature)}: time_us[{quote(kind)}] has no fits[{quote(kind)}]")
    return Profiled(values["torch"], values.get("machine", ""), ops, fits, tuple(values.get("steps", ())), str(path))


def save_profiled(costs: Profiled, path: str | Path) -> None:
    """Write a file of measured costs, ``.json`` or ``.json.gz``."""
    document = {
        "format": FORMAT,
        "torch": costs.torch,
        "machine": costs.machine,
        "steps": [dict(step) for step in costs.steps],
        "fits": {kind: {key: vars(fit) for key, fit in of.items()} for kind, of in costs.fits.items()},
        "ops": [vars(op) | {"time_us": dict(op.time_us)} for op in costs.ops],
    }
    write_json(document, path)


def torch_version() -> str:
    """The version of the installed torch, without the name of its build: 2.13.0 for 2.13.0+cpu."""
    return version("torch").split("+")[0]
