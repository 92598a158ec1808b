"""Reading and writing cluster files, and presets by name. The module `topology` has the compact form of links.

Legend: D devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Required

import numpy as np
from pydantic import Field

from placeto.errors import ClusterError
from placeto.problem.checks import Index, Number, Positive, Text, read_document, record_of, record_type
from placeto.problem.cluster.by_kinds import KINDS, of_kinds
from placeto.problem.cluster.cluster import BYTES_PER_US, FORMAT, Cluster, Device, LinkFields, SharedLink
from placeto.problem.cluster.presets import CLUSTERS
from placeto.problem.cluster.topology import MOST_DEVICES, Topology
from placeto.problem.json_files import check_json_name, read_json, write_json
from placeto.problem.messages import quote, within

_ALIKE = "number of equal devices, which are called `name:0`, `name:1` and so on. Default: one device, called `name`"
_Devices = Annotated[int, Field(strict=True, ge=1, le=MOST_DEVICES, description=_ALIKE)]
_Kind = Annotated[Text, Field(json_schema_extra={"default": "gpu"})]
_Names = Annotated[list[Text], Field(description="names of the devices that it leads from, or to")]
DeviceRecord = record_of(Device, kind=_Kind, count=_Devices)
SharedLinkRecord = record_type(
    "SharedLinkRecord",
    {
        "name": Annotated[Text, Field(description="name of the link")],
        "bandwidth": Annotated[Positive, Field(description="bytes/s")],
        "from": _Names,
        "to": _Names,
    },
    {"latency_us": Annotated[Number, Field(description="is added to the latency of the pairs. Default: 0")]},
)
TopologyRecord = record_of(Topology)
_Entry = Annotated[float, Field(strict=True, allow_inf_nan=True)]
_Matrix = _Entry | list[list[_Entry | None]]


class ClusterRecord(LinkFields, total=False):
    """The content of a cluster file."""

    name: Text  # name of the cluster; not part of its hash. Default: the file's name
    devices: Required[Annotated[list[DeviceRecord], Field(min_length=1)]]  # type: ignore[valid-type]
    """At least one device."""
    topology: TopologyRecord  # type: ignore[valid-type]
    """Hosts and islands, in place of `bandwidth` and `latency_us`. Default: `bandwidth` must be given"""
    bandwidth: _Matrix
    """Bytes/s: a D x D matrix for D devices, from row to column, or one number for all pairs; the diagonal is ignored.
    Default: `topology` must be given"""
    latency_us: _Matrix  # a D x D matrix, or one number. Default: 0
    shared_links: list[SharedLinkRecord]  # type: ignore[valid-type]
    """Links that several pairs of devices share, such as network cards; not with free links or broadcasts.
    Default: `[]`"""
    price_per_hour: Number
    """Price of all devices together, in any currency; not part of the hash. `placeto compare` prints what a step costs.
    Default: no price"""
    hosts: list[Index]
    """The number of each device's host, from 0. In micro-batches, a host sums the gradients of its devices before it
    sends them to another host, and a parameter crosses to another host once. `topology` also says which devices share
    a host. Default: all on one host"""


_LEAST = 1e6
_UNITS = {  # number of a file -> its unit, and an example
    "flops": ("FLOP/s", "15.7e12"),
    "memory_bandwidth": ("bytes/s", "900e9"),
    "memory": ("bytes", "16e9"),
    "bandwidth": ("bytes/s", "12e9"),
}
_MATRICES = ("bandwidth", "latency_us")


def load_cluster(name_or_path: str | Path) -> Cluster:
    """Return the preset of a name, or the cluster in a file (``.json``, ``.json.gz``; format "placeto.cluster/1").

    A name such as 4xrtx3090 or 2xh100+1xl4 gives boards of one host, with assumed links: see `by_kinds`.

    Raises:
        ClusterError: there is no preset and no file of this name, or the file is no cluster file; the message names
            the name, or the file and the field.
        OSError: the file can't be read.
    """
    if not isinstance(name_or_path, str | PathLike):
        what = "a cluster is the name of a preset, such as '4xv100', the path of a cluster file, or a Cluster"
        raise ClusterError(f"{what}, not {quote(name_or_path)}")
    if str(name_or_path) in CLUSTERS:
        return CLUSTERS[str(name_or_path)]()
    if (made := of_kinds(str(name_or_path))) is not None:
        return made[0]
    path = Path(name_or_path)
    if not path.name.endswith((".json", ".json.gz")):
        if path.is_file():
            raise ClusterError(
                f"cluster {quote(str(name_or_path))}: the name of a cluster file must end in .json or .json.gz "
                "(`placeto cluster` makes one of what nvidia-smi prints)"
            )
        near = str(name_or_path).lower()
        if of_kinds(near) is None:
            near = next(iter(get_close_matches(near, CLUSTERS, 1, 0.75)), "")
        meant = f"; did you mean {near}? Presets" if near else ": presets"
        raise ClusterError(
            f"unknown cluster {quote(str(name_or_path))}{meant} are {', '.join(CLUSTERS)}; others are "
            f"numbers of boards, such as 4xrtx3090, of the kinds {', '.join(KINDS)}; or name a .json file, as "
            "`placeto cluster` writes it"
        )
    if not path.exists():
        raise ClusterError(f"cluster {quote(str(path))}: there is no such file; presets are {', '.join(CLUSTERS)}")
    document = read_json(path, ClusterError)
    with within(ClusterError, path):
        return _from_document(document, default_name=path.name.split(".")[0])


def save_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write a cluster as ``.json`` or ``.json.gz``; loading it gives the same numbers to the bit.

    Raises:
        ClusterError: the name doesn't end in .json or .json.gz, or `cluster` is no `Cluster`.
        OSError: the file can't be written.
    """
    if not isinstance(cluster, Cluster):
        raise ClusterError(f"save_cluster needs a Cluster, then a path, not {quote(cluster)}")
    check_json_name(path, ClusterError)
    bandwidth = np.vectorize(_bytes_per_second)(cluster.bandwidth)
    np.fill_diagonal(bandwidth, 0.0)
    document = {
        "format": FORMAT,
        "name": cluster.name,
        "transfers": cluster.transfers,
        "link": cluster.link,
        "devices": [vars(device) for device in cluster.devices],
        "bandwidth": bandwidth.tolist(),
        "latency_us": cluster.latency_us.tolist(),
        "link_gap_us": cluster.link_gap_us,
        "dispatch": cluster.dispatch,
    }
    if cluster.num_hosts > 1:
        document["hosts"] = list(cluster.hosts)
    if cluster.price_per_hour is not None:
        document["price_per_hour"] = cluster.price_per_hour
    if cluster.shared_links:  # the latencies of the pairs include theirs
        document["shared_links"] = [
            {
                "name": link.name,
                "bandwidth": _bytes_per_second(link.bandwidth),
                "from": list(link.senders),
                "to": list(link.receivers),
            }
            for link in cluster.shared_links
        ]
    write_json(document, path)


def _bytes_per_second(bytes_per_us: float) -> float:
    """Return the bytes/s of a file that load as exactly `bytes_per_us`: the product, or the float next to it."""
    value = bytes_per_us * BYTES_PER_US
    for candidate in (value, math.nextafter(value, 0), math.nextafter(value, math.inf)):
        if candidate / BYTES_PER_US == bytes_per_us:
            return candidate
    return value


def _from_document(document: Any, default_name: str) -> Cluster:
    values = read_document(document, FORMAT, "a cluster file", ClusterRecord, ClusterError)
    devices = _devices(values["devices"], document["devices"])
    name = values.get("name", default_name)
    links = {key: values[key] for key in LinkFields.__annotations__ if key in values}
    if "topology" in values:
        for key in (*_MATRICES, "shared_links", "hosts"):
            if key in values:
                raise ClusterError(f"topology stands in place of {key}: leave one of the two out")
        cluster = Cluster.from_topology(name, devices, Topology(**values["topology"]), **links)
    else:
        if "bandwidth" not in values:
            raise ClusterError("bandwidth is missing (or topology in its place)")
        bandwidth, latency_us = (_matrix(values.get(key, 0.0), key, len(devices)) for key in _MATRICES)
        shared = _shared_links(values.get("shared_links", ()), devices, latency_us)
        matrices, hosts = (bandwidth / BYTES_PER_US, latency_us), tuple(values.get("hosts", ()))
        cluster = Cluster(name, devices, *matrices, **links, shared_links=shared, hosts=hosts)
    cluster = replace(cluster, price_per_hour=values.get("price_per_hour"))
    for device in devices:
        with within(ClusterError, "device", device.name):
            for key in ("memory_bandwidth", "memory"):
                _refuse_implausible(key, getattr(device, key))
            for peak in device.flops.values() if isinstance(device.flops, Mapping) else [device.flops]:
                _refuse_implausible("flops", peak)
    _refuse_implausible("bandwidth", cluster.bandwidth.min() * BYTES_PER_US)
    return cluster


def _refuse_implausible(key: str, value: float) -> None:
    """Raise a ClusterError for a number too small for any machine; mostly its exponent was forgotten."""
    if value < _LEAST:
        unit, example = _UNITS[key]
        raise ClusterError(
            f"{key} = {value:g} {unit} is implausible, it must be at least {_LEAST:g} {unit}: write it as in {example}"
        )


def _devices(records: list[Any], document: list[Any]) -> tuple[Device, ...]:
    """Make the devices of all records: one of each, or `count` alike ones, named "name:0", "name:1"..."""
    devices: list[Device] = []
    for record, written in zip(records, document, strict=True):
        count = record.get("count")
        if len(devices) + (count or 1) > MOST_DEVICES:
            most = f"makes more than {MOST_DEVICES} devices in all, the most that a cluster has"
            raise ClusterError(f"devices[{quote(record['name'])}] {most}")
        # as given: integers and floats have hashes of their own
        device = Device(**{"kind": "gpu"} | {key: written[key] for key in record if key != "count"})
        devices += [device] if count is None else [replace(device, name=f"{device.name}:{i}") for i in range(count)]
    return tuple(devices)


def _shared_links(
    records: Sequence[Any], devices: tuple[Device, ...], latency_us: np.ndarray
) -> tuple[SharedLink, ...]:
    """Make the shared links of a file. Their latency is added to `latency_us` (D, D) of the pairs that cross them."""
    names, links = [device.name for device in devices], []
    for record in records:
        with within(ClusterError, "shared link", record["name"]):
            _refuse_implausible("bandwidth", record["bandwidth"])
        senders, receivers = tuple(record["from"]), tuple(record["to"])
        latency_us += record.get("latency_us", 0.0) * np.outer(np.isin(names, senders), np.isin(names, receivers))
        links.append(SharedLink(record["name"], record["bandwidth"] / BYTES_PER_US, senders, receivers))
    return tuple(links)


def _matrix(value: Any, key: str, size: int) -> np.ndarray:
    """(D, D) float64 from nested lists, or from one number for all pairs."""
    if isinstance(value, list) and [*map(len, value)] != [size] * size:
        raise ClusterError(f"{key} must be a {size} x {size} matrix, one row per device, or one number")
    return np.broadcast_to(np.array(value, np.float64), (size, size)).copy()
