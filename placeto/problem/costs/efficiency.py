"""Op times from the shares of their datasheets' speeds that devices reached in measurements: the default cost model.

time = fixed + max(flops / (peak of the dtype * compute * r^slope), bytes / (memory bandwidth * memory)), where r is the
ratio of the two terms at full speed. Ops that reuse more of what they read, such as products of large matrices, reach a
larger share of the peak. The factors of each kind of op on each device are in a table, ``efficiency.json``, which
`experiments.fit_efficiency` makes from measured ops. Boards that run at their power limit during a step don't reach the
shares of ops that were measured alone: `sustained` bounds them. A kind of op that was not measured on a device has the
mean of other devices. A kind that was not measured in a dtype has the factors of the plainer kind that it computes as.
On the K80 and on CPUs, and for kinds that were measured nowhere, the time is the roofline's, divided by a constant.
`fixed` was measured with the overhead that a device has after each op. This overhead is subtracted, so that it isn't
counted twice.

A GPU differs from the captured ops in three ways: it computes a dropout in one kernel in each direction, and attention
with dropout, too; and convolutions on tensor cores copy tensors whose channels aren't the innermost dimension.

Legend: N ops, D devices.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, NamedTuple, NotRequired

import numpy as np
from pydantic import AfterValidator, Field

from placeto.errors import CostsError
from placeto.problem.checks import Number, OneOf, OpenRecord, Positive, Text, read_document
from placeto.problem.cluster import Cluster, Device
from placeto.problem.costs.cost_model import of_devices
from placeto.problem.dtypes import DEFAULT, DTYPES
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.fused_attention import work_on_gpus
from placeto.problem.graph.label_values import ATTENTION, CHANNELS_LAST, DROPOUT
from placeto.problem.json_files import read_json
from placeto.problem.messages import quote, within

FORMAT = "placeto.efficiency/1"
ANY = "*"
"""In place of a device: the mean of all measured devices. In place of a dtype: all dtypes without their own entry."""
KINDS = {
    "convolution": r"(_|cudnn_|mkldnn_)?convolution|(fused|qlinear|deform|nhwc|nhwcfused)?conv|conv\d?d|"
    r"conv(transpose|integer)",
    "matmul": r"mm|addmm|linear|mv|addmv|v?dot|addbmm|_addmm_activation|_trilinear|_int_mm|_scaled_mm\w*|"
    r"_weight_int\dpack_mm\w*|_native_multi_head_attention|_transformer_encoder_layer_fwd|einsum|q?moe|"
    r"(fused|qlinear|transpose|dynamicquantize)?matmul(integer|integertofloat|nbits|bnb4|fpq4|activation)?|"
    r"(fused|q)?gemm(float8|fastgelu)?",
    "batched_matmul": r"bmm|baddbmm|_grouped_mm",
    "attention": r"_(scaled_dot_product|flash|efficient|cudnn)_\w*attention\w*|(q|multihead|groupquery)?attention",
    "recurrent": r"_cudnn_rnn|_thnn_fused_\w+|miopen_rnn|mkldnn_rnn_layer|(dynamicquantize)?lstm|gru|rnn",
    "batch_norm": r"(native|cudnn|miopen|_)*batch_?norm\w*",
    "layer_norm": r"(native|_fused|skip|simplified|embed)*_?(layer|group|rms|instance)_?norm\w*",
    "softmax": r"_?(log_?|safe_|bias)?softmax\w*",
    "max_pool": r"(adaptive_|global)?max_?pool\w*",
    "avg_pool": r"_?(adaptive_|global)?(avg_|average)pool\w*",
    "gather": r"embedding\w*|index\w*|_?unsafe_index\w*|gather\w*|scatter\w*|nll_loss\w*",
    "elementwise": r"\w+",
}
"""Kind of ops -> pattern of the last part of their type in torch or ONNX. The first kind that matches is taken."""
_TWO_WAYS = ("convolution", "batch_norm", "layer_norm", "softmax", "max_pool", "avg_pool")
"""Kinds whose backward pass is a kind of its own. As far as data show, the others are alike in both directions."""
_LONGEST_TYPE = 200  # characters
_NAMESPACES = ("aten.", "graphs.", "prims.", "optimizer.", "onnx.")


def op_kind(op_type: str, kernel: str = "") -> str:
    """Return the kind of an op by its type, and for convolutions by its kernel; "" if the kind is unknown.

    >>> op_kind("aten.convolution_backward", "depthwise"), op_kind("aten.addmm"), op_kind("aten.relu"), op_kind("mine")
    ('depthwise_convolution_backward', 'matmul', 'elementwise', '')
    >>> op_kind("onnx.Gemm"), op_kind("onnx.BatchNormalization"), op_kind("optimizer.adam")
    ('matmul', 'batch_norm', 'elementwise')
    """
    if not op_type.startswith(_NAMESPACES) or len(op_type) > _LONGEST_TYPE:
        return ""
    name = op_type.rpartition(".")[2]
    plain, backward, _ = name.partition("_backward")
    kind = next((kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, plain, re.IGNORECASE)), "")
    if kernel == ATTENTION and kind.endswith("matmul"):
        return "attention"
    groups = kernel.removesuffix(CHANNELS_LAST).rstrip("_")
    if groups and kind == "convolution":
        kind = f"{groups}_{kind}"
    return f"{kind}_backward" if backward and kind.removeprefix(f"{groups}_") in _TWO_WAYS else kind


class Factors(NamedTuple):
    """How fast ops of one kind are on a device."""

    compute: float  # share of the peak, where the ratio r is 1
    memory: float  # share of the memory bandwidth
    fixed_us: float  # microseconds of each op, including the device's overhead
    slope: float = 0.0  # exponent of the ratio r of computing to accessing
    least: float = 1.0  # smallest ratio r that was measured; smaller ones count as this
    most: float = 1.0  # largest ratio r that was measured; larger ones count as this


_KIN = {"tf32": ("float16",), "bfloat16": ("float16",), "float16": ("bfloat16",)}
"""Dtype -> dtypes whose factors are used if it has none; float32's are used after them."""
_PLAIN = {
    "batched_matmul": "matmul",
    "convolution": "matmul",
    "convolution_backward": "matmul",
    "grouped_convolution": "convolution",
    "grouped_convolution_backward": "convolution_backward",
}
"""Kind of ops -> the plainer kind whose factors it has in a dtype in which it wasn't measured. On tensor cores, cuDNN
computes every convolution as a matrix product whose matrices are never written to memory ("implicit GEMM")."""
_LOSING = ("grouped_convolution", "grouped_convolution_backward")
"""Kinds of `_PLAIN` whose parts don't fill a kernel's tiles: slower than the plain kind by the ratio in float32."""
_ON_TENSOR_CORES = ("tf32", "bfloat16", "float16")
_DROPOUT_FLOAT = {"float64": 8, "float16": 2, "bfloat16": 2}  # bytes of a number; 4 for other dtypes


@dataclass(frozen=True)
class Efficiency:
    """A cost model by factors for each device, dtype and kind of op; the module has the formula."""

    entries: Mapping[tuple[str, str, str], Factors]  # (kind of device, dtype or ANY, kind of op)
    same: Mapping[str, str]  # kind of device -> kind with the same chip, whose entries are used where it has none
    constant: float  # share of the roofline's speed, if nothing is measured
    constants: Mapping[str, float] = field(default_factory=dict)  # kind of device -> its own constant
    # kind of device -> the largest share of the peak that it sustains on tensor cores for a whole step
    sustained: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """The name of the model, and a hash of its table."""
        table = sorted((*key, *factors) for key, factors in self.entries.items())
        others = (sorted(each.items()) for each in (self.constants, self.sustained))
        content = json.dumps([table, sorted(self.same.items()), self.constant, *others])
        return f"efficiency {hashlib.sha256(content.encode()).hexdigest()[:12]}"

    @cached_property
    def devices(self) -> frozenset[str]:
        """Kinds of devices that have entries."""
        return frozenset(device for device, _, _ in self.entries) - {ANY}

    def unmeasured(self, cluster: Cluster) -> tuple[str, ...]:
        """Kinds of a cluster's devices of which matrix products or elementwise ops weren't measured, in order."""
        measured = {(device, kind) for device, _, kind in self.entries}
        names = {device.kind: self._names(device) for device in cluster.devices}
        both = ("matmul", "elementwise")
        return tuple(k for k, of in names.items() if not all(any((n, kind) in measured for n in of) for kind in both))

    def _names(self, device: Device) -> tuple[str, ...]:
        """The kind of a device, and the kind with the same chip if there is one.

        The part of the kind from "*" on is ignored: a "v100*0.5" is a V100 at half its speed.
        """
        name = device.kind.partition("*")[0]
        return (name, self.same[name]) if name in self.same else (name,)

    def factors(self, device: Device, dtype: str, kind: str) -> Factors:
        """Factors of a kind of ops in a dtype on a device."""
        return self._found(device, dtype, kind)[0]

    def _found(self, device: Device, dtype: str, kind: str) -> tuple[Factors, bool]:
        """Factors, and whether they were measured on the device itself.

        They are the first that there are of: the kind in the dtype or a similar one; the plainer kind; the kind in
        float32; its forward pass; the constant. For convolutions on tensor cores, only the device's own entries count
        at first. If there are none, its own matrix products predict more than convolutions on other devices, which were
        measured with another cuDNN.
        """
        names, kin = self._names(device), (dtype, ANY, *_KIN.get(dtype, ()))
        if kind.startswith(CHANNELS_LAST):
            plain = kind.removeprefix(f"{CHANNELS_LAST}_")
            return self._entry(names, kin, kind, True) or self._found(device, dtype, plain)
        if self.constants.keys().isdisjoint(names) and not device.is_cpu:
            own = kind.startswith("convolution") and _on_tensor_cores(device, dtype)
            entry = self._entry(names, kin, kind, own)
            if entry is None and dtype != DEFAULT and kind in _PLAIN:
                entry = self._as_plain(device, dtype, kind)
            if entry := entry or self._entry(names, (DEFAULT,), kind):
                return entry
            if kind.endswith("_backward"):
                return self._found(device, dtype, kind.removesuffix("_backward"))
        constant = next((self.constants[name] for name in names if name in self.constants), self.constant)
        return Factors(constant, constant, 0.0), False

    def _entry(
        self, names: tuple[str, ...], dtypes: Iterable[str], kind: str, device_only: bool = False
    ) -> tuple[Factors, bool] | None:
        """The first entry of these dtypes, and whether it is the device's own; None if there is none.

        `names` are the kinds of the device, from `_names`. With `device_only`, the mean of other devices isn't taken.
        """
        for dtype in dtypes:
            for where in names if device_only else (*names, ANY):
                if (where, dtype, kind) in self.entries:
                    return self.entries[where, dtype, kind], where != ANY
        return None

    def _as_plain(self, device: Device, dtype: str, kind: str) -> tuple[Factors, bool]:
        """The plainer kind's factors, and False; for `_LOSING` they are times the ratio of the two kinds in float32."""
        plain = self._found(device, dtype, _PLAIN[kind])[0]
        if kind in _LOSING:
            mine, others = (self.factors(device, DEFAULT, one) for one in (kind, _PLAIN[kind]))
            compute, memory = mine.compute / others.compute, mine.memory / others.memory
            plain = plain._replace(compute=plain.compute * compute, memory=plain.memory * memory)
        return plain, False

    def op_time_us(self, graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
        """(N, D) float64, microseconds."""
        labels = list(zip(graph.op_types, graph.kernels, graph.dtypes, strict=True))
        unique = {label: number for number, label in enumerate(dict.fromkeys(labels))}
        signature = np.array([unique[label] for label in labels])
        kinds = [_kind_in(graph.mode, op_kind(op_type, kernel)) for op_type, kernel, _ in unique]
        fused = np.array([_of_dropout(*label) for label in unique])[signature]
        flops, accessed = work_on_gpus(graph)

        def time_us(device: Device) -> np.ndarray:
            signatures = [
                (kind, kernel, _runs_in(device, dtype)) for kind, (_, kernel, dtype) in zip(kinds, unique, strict=True)
            ]
            in_layout = [_in_layout(kind, kernel) for kind, kernel, _ in signatures]
            peaks = np.array([device.peak(dtype) for _, _, dtype in signatures], np.float64)[signature]
            factors = [self.factors(device, o[2], kind) for o, kind in zip(signatures, in_layout, strict=True)]
            share, memory, fixed, slope, least, most = np.array(factors)[signature].T
            work, size = (graph.flops, graph.bytes_accessed) if device.is_cpu else (flops, accessed * fused)
            compute, access = work / peaks, size / float(device.memory_bandwidth)
            ratio = np.clip(np.where(access > 0, compute / access, most), least, most)
            copies = access * np.array([self._copies(device, *one) for one in signatures])[signature]
            highest = np.array([self._sustained(device, dtype) for _, _, dtype in signatures])[signature]
            share = np.minimum(share * ratio**slope, highest)
            busy = (np.maximum(compute / share, access / memory) + copies) * 1e6
            free = (work == 0) & (size == 0)
            return np.where(free, 0.0, busy + np.maximum(fixed - device.overhead_us, 0.0))

        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # problems refuse times that aren't finite
            return of_devices(cluster, time_us)

    def _sustained(self, device: Device, dtype: str) -> float:
        """The largest share of the peak in a dtype that a device sustains for a whole step; inf if it isn't known."""
        if not _on_tensor_cores(device, dtype):
            return np.inf
        return next((self.sustained[name] for name in self._names(device) if name in self.sustained), np.inf)

    def _copies(self, device: Device, kind: str, kernel: str, dtype: str) -> float:
        """Time of copying a convolution's tensors, as a multiple of the time to access them once at full speed.

        Tensor cores need channels as the innermost dimension. cuDNN copies tensors that have another layout, and the
        result (NVIDIA, "Convolutional Layers User's Guide": "Tensor Layouts In Memory"). Measured times include the
        copies.
        """
        plain = kind.removesuffix("_backward")
        native = kernel.endswith(CHANNELS_LAST) or not _on_tensor_cores(device, dtype)
        if plain not in ("convolution", "grouped_convolution") or native or self._found(device, dtype, kind)[1]:
            return 0.0
        return 2 / self.factors(device, dtype, "elementwise").memory


def _in_layout(kind: str, kernel: str) -> str:
    """The kind of an op, marked if it is a convolution whose channels are the innermost dimension."""
    return f"{CHANNELS_LAST}_{kind}" if kernel.endswith(CHANNELS_LAST) and "convolution" in kind else kind


def _runs_in(device: Device, dtype: str) -> str:
    """The dtype in which a device computes: float32 for TF32 without a peak of it, as on GPUs before Ampere."""
    has = isinstance(device.flops, Mapping) and "tf32" in device.flops
    return DEFAULT if dtype == "tf32" and not has else dtype


def _on_tensor_cores(device: Device, dtype: str) -> bool:
    """Whether a device computes in a dtype on tensor cores, by its peaks.

    It has tensor cores if it has a peak of TF32, or if its float16 peak is more than twice the float32 peak, which
    vectors of two numbers would reach without them.
    """
    cores = isinstance(device.flops, Mapping) and ("tf32" in device.flops or device.peak("float16") > 2 * device.peak())
    return cores and dtype in _ON_TENSOR_CORES and not device.is_cpu


def _kind_in(mode: str, kind: str) -> str:
    """The kind of an op in a mode: in inference, a batch norm gathers no statistics and is elementwise."""
    return "elementwise" if mode == "inference" and kind == "batch_norm" else kind


def _of_dropout(op_type: str, kernel: str, dtype: str) -> float:
    """Share of an op's bytes that a GPU accesses: 1 except for ops of dropouts.

    A GPU computes a dropout in one kernel in each direction, with a mask of one byte for each number.
    """
    if kernel != DROPOUT:
        return 1.0
    size = _DROPOUT_FLOAT.get(dtype, 4)
    return (2 * size + 1) / (3 * size) if op_type.endswith("mul") else 0.0


def _ordered(ratios: tuple[float, float]) -> tuple[float, float]:
    if ratios[0] > ratios[1]:
        raise ValueError("must be [smallest, largest]")
    return ratios


class EntryRecord(OpenRecord):
    """The efficiency of a kind of op on a device in a dtype."""

    device: Text  # kind of device, or `*`: any GPU that has no entry for this kind of op
    dtype: Annotated[str, OneOf((*DTYPES, ANY))]
    """Dtype of ops, or `*`: all dtypes without an entry. If there is neither, tf32 and bfloat16 take the entry of
    float16, and float16 takes that of bfloat16. On a device without a peak for tf32, tf32 is float32. Next comes the
    plainer kind of op (below), then float32."""
    kind: Text
    """Kind of op, as `op_kind` of `placeto/problem/costs/efficiency.py` computes it from `type` and `kernel`.
    `channels_last_` before the name of a convolution means channels last."""
    compute: Positive  # share of the peak
    memory: Positive  # share of the memory bandwidth
    fixed_us: Number  # time of each op, however small. It includes the device's `overhead_us`, which is subtracted
    slope: NotRequired[Annotated[float, Field(strict=True, ge=-1.0, le=1.0)]]
    """How the share of the peak grows with r. Default: 0"""
    ratios: NotRequired[Annotated[tuple[Positive, Positive], AfterValidator(_ordered)]]
    """Smallest and largest r that were measured; outside of this range, the nearest of the two is taken. Default: `[1,
    1]`"""


class EfficiencyRecord(OpenRecord):
    """The content of a table of efficiencies."""

    constant: Positive
    """Share of the roofline's speed, for CPUs (kinds of device that begin with `cpu`) and for kinds of op that were
    measured on no device."""
    constants: NotRequired[dict[Text, Positive]]
    """Kind of device -> a constant of its own, in place of entries. Default: `{}`"""
    sustained: NotRequired[dict[Text, Positive]]
    """Kind of device -> the largest share of the peak that it sustains on tensor cores, in 16 bits or tf32. Entries are
    of short runs of an op, and a step takes longer at the power limit of the board. Default: `{}`"""
    same: NotRequired[dict[Text, Text]]
    """Kind of device -> another kind with the same chip, whose entries it takes where it has none. Default: `{}`"""
    entries: list[EntryRecord]
    """The entries. Other fields of the file and of entries, such as `sources` and errors, are not read."""


def load_efficiency(path: str | Path) -> Efficiency:
    """Read a table of efficiencies (format "placeto.efficiency/1"); fields that say how it was made are ignored.

    Raises:
        CostsError: the file is no such table; the message names the entry and what would be valid.
        OSError: the file can't be read.
    """
    document = read_json(path, CostsError)
    with within(CostsError, path):
        values = read_document(document, FORMAT, "a table of efficiencies", EfficiencyRecord, CostsError)
        entries: dict[tuple[str, str, str], Factors] = {}
        for entry in values["entries"]:
            key = entry["device"], entry["dtype"], entry["kind"]
            if key in entries:
                raise CostsError(f"entries: there are two of {', '.join(map(quote, key))}")
            size = entry.get("slope", 0.0), *entry.get("ratios", (1.0, 1.0))
            entries[key] = Factors(entry["compute"], entry["memory"], entry["fixed_us"], *size)
        shares = values.get("constants", {}), values.get("sustained", {})
        return Efficiency(entries, values.get("same", {}), values["constant"], *shares)


EFFICIENCY = load_efficiency(Path(__file__).with_name("efficiency.json"))
