"""A cluster from the output of nvidia-smi: ``-L`` lists the GPUs of a machine, ``topo -m`` how they are connected.

nvidia-smi doesn't say how fast links are. Their speeds are the numbers of the presets
(`placeto.problem.cluster.presets`), from datasheets, by kind of GPU and of connection:

- ``NV#``: as many NVLinks as the number says, each as in `_NVLINK`. If a GPU shows more links in all than its kind has,
  they go through an NVSwitch: the GPU then sends one tensor after the other, to whichever GPU. Otherwise each pair of
  GPUs has links of its own.
- ``PIX``, ``PXB``, ``PHB``, ``NODE``, within a socket: PCIe of the GPU's generation, 16 lanes.
- ``SYS`` (``SOC`` of old drivers), between sockets: three quarters of the bandwidth of PCIe.
- GeForce boards, whose driver copies through the host's memory: half of PCIe's bandwidth, and the latency of ``SYS``.

GPUs below one PCIe switch (``PIX``, ``PXB``) share the switch's link to all other GPUs.

Legend: D devices.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from placeto.errors import ClusterError
from placeto.problem.cluster import BYTES_PER_US, MOST_DEVICES, Cluster, Device, SharedLink
from placeto.problem.cluster.boards import NVIDIA
from placeto.problem.cluster.presets import (
    LATENCY_US,
    NVLINK2,
    PCIE3,
    PCIE4,
    PCIE5,
    PCIE_LATENCY_US,
    SOCKETS,
    SOCKETS_LATENCY_US,
)
from placeto.problem.json_files import read_bytes
from placeto.problem.messages import listed, quote, within

HOW = "write one by (nvidia-smi -L; nvidia-smi topo -m) > machine.txt"
_BOARDS = {  # pattern of names that nvidia-smi gives a GPU -> kind of the GPU
    r"Tesla K80": "k80",
    r"Tesla P100-PCIE-16GB": "p100",
    r"Tesla P40": "p40",
    r"Tesla V100-SXM[23]-\d+GB": "v100",
    r"(Tesla|NVIDIA) T4": "t4",
    r"NVIDIA A10": "a10",
    r"(NVIDIA )?A100-SXM4-40GB": "a100-40gb",
    r"(NVIDIA )?A100-SXM4?-80GB": "a100",
    r"NVIDIA L4": "l4",
    r"(NVIDIA )?GeForce RTX 3090": "rtx3090",
    r"(NVIDIA )?GeForce RTX 4090": "rtx4090",
    r"NVIDIA H100 80GB HBM3": "h100",
    r"NVIDIA H200": "h200",
    r"NVIDIA B200": "b200",
}


class _NVLink(NamedTuple):
    """NVLinks of a kind of GPU."""

    links: int  # how many the GPU has
    direct: float  # bytes/s of one, one way, where it leads to another GPU
    switch: float  # the same where it leads to an NVSwitch
    latency_us: float


# On paper 20e9 (P100), 25e9 (V100, A100, H100, H200), 50e9 (B200) and 14.06e9 (RTX 3090) bytes/s a link (whitepapers).
# Links of the V100 and the A100, and links to a switch, have the share of it that the presets give them; others that of
# the A100.
_SHARE, _SWITCHED = 92 / 100, 253 / 300
_NVLINK = {
    "p100": _NVLink(4, 20e9 * _SHARE, 20e9 * _SWITCHED, LATENCY_US),
    "v100": _NVLink(6, NVLINK2, 25e9 * _SWITCHED, LATENCY_US),
    "a100": _NVLink(12, 23e9, 253e9 / 12, 8.0),
    "a100-40gb": _NVLink(12, 23e9, 253e9 / 12, 8.0),
    "rtx3090": _NVLink(4, 14.0625e9 * _SHARE, 14.0625e9 * _SWITCHED, LATENCY_US),
    "h100": _NVLink(18, 25e9 * _SHARE, 380e9 / 18, 8.0),
    "h200": _NVLink(18, 25e9 * _SHARE, 380e9 / 18, 8.0),
    "b200": _NVLink(18, 50e9 * _SHARE, 760e9 / 18, 8.0),
}
_PCIE = dict.fromkeys(("k80", "p100", "p40", "v100", "t4"), PCIE3) | dict.fromkeys(("h100", "h200", "b200"), PCIE5)
_GEFORCE = ("rtx3090", "rtx4090")
_ONE_SWITCH = ("PIX", "PXB")
_LEVELS = (*_ONE_SWITCH, "PHB", "NODE", "SYS")
_FAILED = r"NVIDIA-SMI has failed|Failed to initialize NVML|No devices (were )?found|Unable to determine the device"


def load_machine(path: str | Path, kinds: Sequence[str] = (), name: str | None = None) -> Cluster:
    """Return the cluster that a file describes by the output of ``nvidia-smi topo -m`` and of ``nvidia-smi -L``.

    Args:
        path: the path of a text file; other lines in it are not read.
        kinds: the kinds of the GPUs, keys of `NVIDIA`: one for all, or one for each. With them, the output of
            ``nvidia-smi -L`` isn't needed.
        name: the name of the cluster; the file's if not given.

    Raises:
        ClusterError: the file has no matrix, one that isn't whole, several machines, or GPUs without numbers here; or
            `kinds` has an unknown kind, or is of the wrong length.
        OSError: the file can't be read.
    """
    data = read_bytes(path, ClusterError)
    encoding = "utf-16" if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig"  # as PowerShell's > writes it
    text = data.decode(encoding, errors="replace")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    with within(ClusterError, path):
        connections = _matrix(lines)
        devices = _devices(lines, len(connections), kinds)
        return _cluster(Path(path).name.split(".")[0] if name is None else name, devices, connections)


def _matrix(lines: Sequence[str]) -> list[list[str]]:
    """Return the kinds of connections (D, D), with "X" on the diagonal."""
    heads = [at for at, line in enumerate(lines) if re.match(r"\s*GPU0(\s+(GPU1|[^X\s])|\s*$)", line)]
    if not heads:
        _refuse_failure(lines)
        raise ClusterError(f"has no matrix of connections, as nvidia-smi topo -m prints it: {HOW}")
    columns = [word for word in lines[heads[0]].split() if re.fullmatch(r"GPU\d+", word)]
    size = len(columns)
    if columns != [f"GPU{i}" for i in range(size)] or size > MOST_DEVICES:
        raise ClusterError(f"the columns must be GPU0 to GPU{size - 1}, not {listed(columns)}")
    rows = [line.split() for line in lines[heads[0] + 1 :]]
    found = {row[0]: row[1 : size + 1] for row in reversed(rows) if row and row[0] in columns}
    matrix = []
    for i, column in enumerate(columns):
        if len(row := found.get(column, [])) < size:
            raise ClusterError(f"the row of {column} must have {size} connections, it has {len(row)}")
        for j, cell in enumerate(row):
            cell = row[j] = {"SOC": "SYS"}.get(cell, cell)
            if (cell == "X") != (i == j) or not (i == j or cell in _LEVELS or re.fullmatch(r"NV[1-9]\d?", cell)):
                rule = "X" if i == j else f"NV and a number, or one of {', '.join(_LEVELS)}"
                raise ClusterError(f"{column} to {columns[j]} must be {rule}, not {quote(cell)}")
        matrix.append(row)
    for i in range(size):
        for j in range(i):
            if matrix[i][j] != matrix[j][i]:
                raise ClusterError(f"GPU{j} to GPU{i} is {matrix[j][i]}, but GPU{i} to GPU{j} {matrix[i][j]}")
    return matrix


def _devices(lines: Sequence[str], count: int, kinds: Sequence[str]) -> list[Device]:
    """Return the GPUs (D,), by their kinds if there are any, else by the names that ``nvidia-smi -L`` prints."""
    if kinds:
        for kind in kinds:
            if kind not in NVIDIA:
                raise ClusterError(f"there are no numbers for GPUs of kind {quote(kind)}, but for {', '.join(NVIDIA)}")
        if len(kinds) not in (1, count):
            raise ClusterError(f"one kind is needed, or one for each of {count} GPUs, not {len(kinds)}")
        return [replace(NVIDIA[kind], name=f"gpu:{i}") for i, kind in enumerate(list(kinds) * (count // len(kinds)))]
    names: dict[int, str] = {}
    for line in lines:
        if match := re.match(r"\s*GPU (\d+): (.*?)\s*(\(UUID.*)?$", line):
            if names.setdefault(int(match[1]), match[2]) != match[2]:
                both = f"{quote(names[int(match[1])])} and {quote(match[2])}"
                raise ClusterError(f"GPU {match[1]} is {both}: give each machine a file of its own")
        elif names and re.match(r"\s*MIG \S+\s+Device\s+\d+:", line):
            instead = "give its kind (--kind), and correct the file: a device an instance, with its memory and speed"
            raise ClusterError(f"GPU {max(names)} is divided into MIG instances, whose speed isn't known: {instead}")
    if sorted(names) != list(range(count)):
        _refuse_failure(lines)
        what = "doesn't say what GPUs these are" if not names else f"names {len(names)} GPUs, but connects {count}"
        raise ClusterError(f"{what}: {HOW}, or give their kind (--kind), one of {', '.join(NVIDIA)}")
    devices = []
    for i in range(count):
        board = next((kind for name, kind in _BOARDS.items() if re.fullmatch(name, names[i])), None)
        if board is None:
            instead = f"give the kind that is nearest (--kind), one of {', '.join(NVIDIA)}, and correct the file"
            raise ClusterError(f"there are no numbers for GPU {i}, {quote(names[i])}: {instead}")
        memory = re.search(r"-(\d+)GB", names[i])
        size, named = NVIDIA[board].memory, int(memory[1]) if memory else 0
        if named and not named * 10**9 <= size <= named * 2**30:  # a board with another memory, as V100s of 32 GB
            size = named * 10**9
        devices.append(replace(NVIDIA[board], name=f"gpu:{i}", memory=size))
    return devices


def _refuse_failure(lines: Sequence[str]) -> None:
    """Refuse a file in which nvidia-smi says that it failed."""
    for line in lines:
        if re.match(_FAILED, line.strip()):
            said = quote(line.strip())
            raise ClusterError(f"nvidia-smi failed on that machine, it says {said}: mend that, then {HOW}")


def _cluster(name: str, devices: Sequence[Device], connections: Sequence[Sequence[str]]) -> Cluster:
    size = len(devices)
    bandwidth, latency_us = np.zeros((size, size)), np.zeros((size, size))
    direct = False
    for i in range(size):
        for j in range(size):
            if connections[i][j].startswith("NV"):
                bandwidth[i, j], latency_us[i, j], switched = _nvlink(devices, connections, i, j)
                direct |= not switched
            elif i != j:
                bandwidth[i, j], latency_us[i, j] = _pcie(devices[i], devices[j], connections[i][j])
    shared = _switches(devices, connections)
    link = "pair" if direct else "egress"
    return Cluster(name, tuple(devices), bandwidth / BYTES_PER_US, latency_us, link=link, shared_links=tuple(shared))


def _nvlink(
    devices: Sequence[Device], connections: Sequence[Sequence[str]], src: int, dst: int
) -> tuple[float, float, bool]:
    """Return bandwidth in bytes/s and latency in us between two GPUs with NVLinks, and whether they use a switch."""
    rates, latencies, switched = [], [], []
    for end in (src, dst):
        kind, shown = devices[end].kind, sum(int(cell[2:]) for cell in connections[end] if cell.startswith("NV"))
        if kind not in _NVLINK:
            what = f"GPU{src} to GPU{dst} is {connections[src][dst]}"
            raise ClusterError(f"{what}, but a GPU of kind {kind} has no NVLink")
        own = _NVLINK[kind]
        switched.append(shown > own.links)
        rates.append(own.switch if switched[-1] else own.direct)
        latencies.append(own.latency_us)
    return int(connections[src][dst][2:]) * min(rates), max(latencies), all(switched)


def _pcie(here: Device, there: Device, connection: str) -> tuple[float, float]:
    """Return bandwidth in bytes/s and latency in microseconds between two GPUs over PCIe."""
    rate = min(_PCIE.get(device.kind, PCIE4) for device in (here, there))
    if here.kind in _GEFORCE or there.kind in _GEFORCE:
        return rate / 2, SOCKETS_LATENCY_US
    return (rate * SOCKETS / PCIE3, SOCKETS_LATENCY_US) if connection == "SYS" else (rate, PCIE_LATENCY_US)


def _switches(devices: Sequence[Device], connections: Sequence[Sequence[str]]) -> list[SharedLink]:
    """Return the links that GPUs below one PCIe switch share, to and from the GPUs that all reach over PCIe only."""
    shared, seen = [], set()
    for first in range(len(devices)):
        below = {first, *(j for j, cell in enumerate(connections[first]) if cell in _ONE_SWITCH)}
        if first in seen or len(below) == 1:
            continue
        seen |= below
        beyond = [j for j in range(len(devices)) if all(connections[i][j] in _LEVELS[2:] for i in below)]
        if beyond:
            inside, outside = ([devices[i].name for i in side] for side in (sorted(below), beyond))
            rate = min(_PCIE.get(devices[i].kind, PCIE4) for i in below) / BYTES_PER_US
            label = f"PCIe switch of {', '.join(inside)}"
            shared.append(SharedLink(f"{label}, out", rate, tuple(inside), tuple(outside)))
            shared.append(SharedLink(f"{label}, in", rate, tuple(outside), tuple(inside)))
    return shared
