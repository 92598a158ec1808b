"""Placement files (format "placeto.placement/1"): which op runs on which device, and what that costs.

A plan file can be given in place of a placement file, so that the class of its content is here as well.

Legend: N ops, D devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placeto.errors import PlacementError
from placeto.problem.checks import Count, Flag, Index, Number, Size, Text, read_document, record_of
from placeto.problem.cluster.cluster import Dispatch
from placeto.problem.dispatch import order_of_lists
from placeto.problem.json_files import check_json_name, read_json, write_json
from placeto.problem.messages import listed, quote, within
from placeto.problem.step.plan import Plan
from placeto.problem.step.plan_files import PlanRecord, plan_document, plan_of
from placeto.problem.step.recomputation import recomputed

if TYPE_CHECKING:
    from placeto.problem.cluster import Cluster
    from placeto.problem.graph import ComputationGraph
    from placeto.simulator.evaluator import PlacementResult

__all__ = ["PlacementError", "PlacementFile", "PlanFile", "load_placement", "save_placement"]

FORMAT = "placeto.placement/1"
PLANS = "placeto.plan/2", "placeto.plan/1"  # the first is written


@dataclass(frozen=True)
class PlacementFile:
    """The content of a placement file. A field that is None isn't in the file."""

    placement: dict[Text, Text]  # op name -> device name, with every op of the graph and no other
    graph_hash: Text | None = None
    """SHA-256 of the graph, 64 hex digits; another graph is then refused. Default: not checked"""
    cluster: Text | None = None  # name of the cluster. Default: unknown
    costs: Text | None = None  # name of the cost model of `makespan_us`, which has a hash of its data. Default: unknown
    dispatch: Dispatch | None = None
    """The dispatch of `makespan_us`: one of the cluster's values, or "list" for the field `order`. Default: the
    cluster's"""
    makespan_us: Number | None = None  # simulated makespan. Default: unknown
    fits: Flag | None = None  # whether no device exceeds its memory. Default: unknown
    peak_memory: dict[Text, Size] = field(default_factory=dict)  # device name -> its peak in bytes. Default: `{}`
    whole_modules: list[Text] | None = None
    """Paths of the modules that were kept whole in addition to the blocks of the model; the report then compares with
    such placements. Default: any module could be divided"""
    placer: Text | None = None  # name of the placer. Default: unknown
    simulations: Index | None = None  # how many simulations it made. Default: unknown
    seconds: Number | None = None  # how long it took. Default: unknown
    order: dict[Text, list[Text]] | None = None
    """Device name -> its ops, in the order in which they start; it must not contradict the graph. If devices keep
    strictly to it, links send what is ready first, and not what is most urgent, so that the step can take longer than
    `makespan_us`. Default: by dispatch"""
    plan: PlanRecord | None = None
    """The plan whose placement it is; exports of pipelines take the plan. Default: a free placement"""

    def devices(self, graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
        """Return the device index of each op, (N,) int64, in the order of ``graph.op_names``.

        Raises:
            PlacementError: the file is for another graph, leaves an op out, or names an unknown op or device.
        """
        return self._numbered(graph, cluster.device_names, cluster.name)

    @property
    def width(self) -> int:
        """Number of boards of the tensor-parallel groups of the file's plan; 1 without groups."""
        return 1 if self.plan is None else self.plan.get("width", 1)

    def step(self, captured: ComputationGraph) -> ComputationGraph:
        """Return the graph whose ops the file places: that of a captured step, with what the file's plan recomputes.

        Raises:
            PlanError: the step lacks a module that the plan recomputes.
        """
        return captured if self.plan is None else recomputed(captured, tuple(self.plan.get("recomputed", ())))

    def plan_on(self, cluster: Cluster) -> Plan | None:
        """Return the plan whose placement the file has; None for a free placement.

        Raises:
            PlacementError: the plan names a device that the cluster doesn't have, or contradicts itself.
        """
        return None if self.plan is None else plan_of(self.plan, cluster, PlacementError)

    def op_order(self, graph: ComputationGraph) -> np.ndarray | None:
        """Return an order of all ops, (N,) int64, in which each device's ops stand as the file lists them.

        Returns None if the file has no lists.

        Raises:
            PlacementError: the file is for another graph, or its lists leave an op out, name an unknown op, have an op
                under another device than the placement has, or contradict the graph.
        """
        if self.order is None:
            return None
        self._check_hash(graph)
        lists = []
        for device, names in self.order.items():
            for op in names:
                if op not in graph.index:
                    raise PlacementError(f"op {quote(op)} in the order of {quote(device)} is not in the graph")
                if self.placement.get(op) != device:
                    raise PlacementError(f"op {quote(op)} in the order of {quote(device)} is placed elsewhere")
            lists.append([graph.index[op] for op in names])
        return order_of_lists(graph, lists)

    def on(self, graph: ComputationGraph, count: int) -> tuple[np.ndarray, list[list[int]], list[str]]:
        """Return the placement on `count` devices, for callers that don't have its cluster.

        The devices are all that the file names, or only those that have an op if `count` is their number. They are
        numbered in the order of the file's `peak_memory` or, if it has none, of its `order`.

        Returns:
            The number of each op's device (N,), the ops of each device in their order, and the devices' names.

        Raises:
            PlacementError: the file is for another graph, has no order or one that contradicts the graph, leaves an op
                out, or neither names nor uses `count` devices.
        """
        names = list(self.peak_memory or self.order or {})
        if self.order is None or not names:
            raise PlacementError("the placement has no order: `placeto place` writes one")
        names += sorted({*self.placement.values(), *self.order} - set(names))
        used = [name for name in names if name in set(self.placement.values())]
        if count not in (len(names), len(used)):
            of_these = f", and uses {len(used)} of them" if len(used) < len(names) else ""
            raise PlacementError(
                f"the placement is for {len(names)} devices, {listed(names)}{of_these}; {count} are given"
            )
        names = names if count == len(names) else used
        placement = self._numbered(graph, names, self.cluster)
        self.op_order(graph)  # which refuses orders that contradict the graph
        return placement, [[graph.index[op] for op in self.order.get(name, [])] for name in names], names

    def _numbered(self, graph: ComputationGraph, devices: Sequence[str], cluster: str | None) -> np.ndarray:
        """(N,) int64, the place of each op's device among the names of devices of a cluster."""
        self._check_hash(graph)
        for op in graph.op_names:
            if op not in self.placement:
                raise PlacementError(f"op {quote(op)} of graph {quote(graph.name)} has no device in the placement")
        index = {name: number for number, name in enumerate(devices)}
        for op, device in self.placement.items():
            if op not in graph.index:
                raise PlacementError(f"op {quote(op)} of the placement is not in graph {quote(graph.name)}")
            if device not in index:
                known = f"is not in cluster {quote(cluster)}, which has {listed(devices)}"
                raise PlacementError(f"op {quote(op)}: device {quote(device)} {known}")
        return np.array([index[self.placement[op]] for op in graph.op_names], np.int64)

    def _check_hash(self, graph: ComputationGraph) -> None:
        how = "a model must be captured with the same options and sizes with which it was placed"
        if self.graph_hash is not None and self.graph_hash != graph.hash:
            raise _of_another("placement", "graph", self.graph_hash, graph, f"{self._differences(graph)}: {how}")

    def _differences(self, graph: ComputationGraph) -> str:
        """Return a clause that says how the file's graph differs from `graph`, as far as the names of ops show it."""
        if unknown_op := next((op for op in self.placement if op not in graph.index), None):
            return f"that one has an op {quote(unknown_op)}, which isn't in this one"
        if new := next((op for op in graph.op_names if op not in self.placement), None):
            return f"this one has an op {quote(new)}, which isn't in that one"
        return "both have the same ops, so that sizes differ, such as the batch, or the precision or the optimizer"


@dataclass(frozen=True)
class PlanFile:
    """The content of a plan file."""

    kind: Text  # the way, such as "pipeline"
    shape: Text  # such as "2 stages x 4"
    micro_batches: Count  # into how many the batch is split
    order: Text  # in which a device runs its ops: a dispatch, "own list" or "program"
    run_by: Text  # the tool whose step is simulated
    batch: Count  # samples of a step
    step_us: Number  # time of a step, as the tool of `run_by` runs it
    memory: Mapping[Text, Size]
    """What the fullest device holds (the one that uses the largest share of its memory), in bytes of `weights`,
    `gradients`, `optimizer`, `activations` and `received`."""
    room: Size  # bytes of memory of that device, less what `--headroom` keeps free
    fits: Flag  # whether the step fits all devices
    cluster_hash: Text  # SHA-256 of the cluster, 64 hex digits; another cluster is refused
    plan: PlanRecord | None = None  # stages, replicas and micro-batches. Default: the way is a free placement
    placement: PlacementFile | None = None
    """A placement, whose `makespan_us` and `peak_memory` are those in Placeto's own runtime. Default: the way shards
    gradients, as FSDP does, so that no op has a device"""
    graph_hash: Text | None = None
    """SHA-256 of the captured step, without what the plan recomputes; `placeto run --plan` refuses replicas of another
    one. Default: not checked"""

    def check_graph(self, graph: ComputationGraph) -> None:
        """Refuse a step other than the plan's.

        Raises:
            PlacementError: the hash of the graph isn't the one in the plan.
        """
        if self.graph_hash is not None and self.graph_hash != graph.hash:
            how = "give the model and the options with which it was planned, or plan again"
            raise _of_another("plan", "step", self.graph_hash, graph, how)

    def check_cluster(self, cluster: Cluster) -> None:
        """Refuse a cluster other than the plan's.

        Raises:
            PlacementError: the hash of the cluster isn't the one in the plan.
        """
        if cluster.hash != self.cluster_hash:
            named = "" if self.placement is None else f", {quote(self.placement.cluster)}"
            how = f"give the plan's cluster{named}, or plan again"
            raise _of_another("plan", "cluster", self.cluster_hash, cluster, how)

    def placement_with_plan(self) -> PlacementFile:
        """Return the placement, with the plan that it is of.

        Raises:
            PlacementError: the file has no placement.
        """
        if self.placement is None:
            what = f"its way, {quote(self.kind)}, shards gradients, so that no op has a device"
            how = f"`placeto run --plan` runs it by {self.run_by}; or make a placement with `placeto place -o`"
            raise PlacementError(f"{what}: {how}")
        return self.placement if self.plan is None else replace(self.placement, plan=self.plan)


def _of_another(file: str, kind: str, theirs: str, ours: ComputationGraph | Cluster, how: str) -> PlacementError:
    """Return the refusal of a file for another graph, step or cluster than it is given with."""
    what = f"the {file} is for another {kind}: its hash begins with {quote(theirs[:12])}"
    return PlacementError(f"{what}, and with {quote(ours.hash[:12])} for {quote(ours.name)}; {how}")


def load_placement(path: str | Path) -> PlacementFile:
    """Read a placement file, or the placement of a plan file; `PlacementFile.devices` turns it into an array.

    Raises:
        PlacementError: the file is neither of the two, has a wrong field, or is a plan without a placement; the message
            names the file and the field.
        OSError: the file can't be read.
    """
    document = read_json(path, PlacementError)
    with within(PlacementError, path):
        plan = plan_file_of(document)
        return placement_of(document) if plan is None else plan.placement_with_plan()


def plan_file_of(document: Any) -> PlanFile | None:
    """Return the plan file that a JSON document holds; None if it has another format.

    Raises:
        PlacementError: it is of a version that isn't read, or has a wrong field; the message names the field.
    """
    form = document.get("format") if isinstance(document, dict) else None
    if not isinstance(form, str) or not form.startswith("placeto.plan/"):
        return None
    if form not in PLANS:
        raise PlacementError(f"{quote(form)} is a version that this Placeto doesn't read: it reads {listed(PLANS)}")
    values = dict(document)
    if values.get("placement") is not None:
        with within(PlacementError, "placement"):
            values["placement"] = placement_of(values["placement"])
    file = PlanFile(**read_document(values, form, "a plan", record_of(PlanFile), PlacementError))
    if file.plan is None and file.placement is None:
        raise PlacementError("the file needs a plan or a placement, and has neither: plan again")
    return file


def placement_of(document: Any) -> PlacementFile:
    """Return the placement file that a JSON document holds.

    Raises:
        PlacementError: the document isn't a placement file; the message names the field.
    """
    record = record_of(PlacementFile)
    return PlacementFile(**read_document(document, FORMAT, "a placement file", record, PlacementError))


def save_placement(placement: PlacementFile | PlacementResult, path: str | Path) -> None:
    """Write what a placer returned, or a `PlacementFile`, to a placement file; fields that are None are left out.

    For what a placer returned, the file also has the peak memory of each device.

    Raises:
        PlacementError: the name doesn't end in .json or .json.gz, or `placement` is neither of the two.
        OSError: the file can't be written.
    """
    from placeto.simulator.result import PlacementResult

    if not isinstance(placement, PlacementFile | PlacementResult):
        what = "save_placement needs what a placer returned, or a PlacementFile, then a path"
        raise PlacementError(f"{what}, not {quote(placement)}")
    check_json_name(path, PlacementError)
    write_json(document_of(placement if isinstance(placement, PlacementFile) else described(placement)), path)


def document_of(file: PlacementFile) -> dict[str, Any]:
    """Return the JSON document of a placement file, without the fields that are None."""
    values = {key: value for key, value in vars(file).items() if value is not None}
    large = {"placement": dict(values.pop("placement"))}
    if file.order is not None:
        large["order"] = {device: list(ops) for device, ops in values.pop("order").items()}
    return {"format": FORMAT, **values, **large}


def described(result: PlacementResult) -> PlacementFile:
    """Return the content of the placement file for a placer's result."""
    graph, cluster = result.problem.graph, result.problem.cluster
    schedule = result.schedule()
    names = np.array(graph.op_names)
    return PlacementFile(
        placement=result.devices(),
        graph_hash=graph.hash,
        cluster=cluster.name,
        costs=result.problem.costs.name,
        makespan_us=float(schedule.makespan_us),
        peak_memory=result.peak_memory,
        fits=schedule.fits,
        dispatch="list" if result.order is not None else result.problem.dispatch,
        order={
            device: names[ops].tolist() for device, ops in zip(cluster.device_names, schedule.device_order, strict=True)
        },
        whole_modules=None if result.whole_modules is None else list(result.whole_modules),
        placer=result.placer or None,
        simulations=int(result.simulations),
        seconds=float(result.seconds),
        plan=None if result.plan is None else plan_document(result.plan, cluster),
    )
