"""A step on a cluster in its variants: numbers of micro-batches, numbers of samples, tensor-parallel groups.

With more micro-batches, more devices of a pipeline can work at the same time. With fewer, ops stay large. Which number
is best depends on the model, the batch, the cluster and the placement. So the only way to know it is to plan the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from placeto.errors import CaptureError, ClusterError, PlanError
from placeto.problem.cluster import Cluster
from placeto.problem.costs import CostModel
from placeto.problem.costs.group_costs import in_groups
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.problem.units import format_bytes

COUNTS = (1, 2, 4, 8, 16)
"""Numbers of micro-batches that are tried, as far as they divide the batch."""
WIDTHS = 2, 4, 8
"""Numbers of boards of the tensor-parallel groups that are tried."""
MOST_OPS = 200_000
"""A step with more ops is large: its pipelines are searched by their chunks alone."""

Setting = tuple[int, int]
"""Width and number of micro-batches of a step."""
GraphOf = Callable[[int, int, int], ComputationGraph]
"""Captures a step in a given number of micro-batches, with a given number of samples, in groups of a given width; a
CaptureError says why it can't be captured so."""


class Variants:
    """A step on a cluster; each of its variants is captured once, when it is first wanted."""

    def __init__(
        self,
        graph_of: GraphOf,
        cluster: Cluster,
        costs: CostModel,
        batch: int = 0,
        grouped: bool = False,
        headroom: int = 0,
    ) -> None:
        """Note how a step is captured, and on what it runs.

        Args:
            graph_of: captures the step.
            cluster: the cluster.
            costs: the cost model.
            batch: number of samples of the step; 0 = unknown.
            grouped: whether the step can be captured in tensor-parallel groups.
            headroom: bytes of each device that stay free.

        Raises:
            ClusterError: the headroom leaves a device no memory.
        """
        self.cluster, self.batch, self.headroom = with_headroom(cluster, headroom), batch, headroom
        self.widths = widths_on(cluster) if grouped else ()
        self._graph_of, self._costs = graph_of, costs
        self._made = dict[tuple[int, int, int], PlacementProblem | CaptureError | ClusterError]()

    def __call__(self, count: int, width: int = 1, samples: int | None = None) -> PlacementProblem:
        """Return the step in a number of micro-batches: of the whole batch, unless a number of samples is given.

        Raises:
            CaptureError: the step can't be captured so.
            ClusterError: the hosts don't have boards for groups of this width.
        """
        samples = self.batch if samples is None else samples
        if (key := (count, width, samples)) not in self._made:
            try:
                groups = in_groups(self.cluster, self._costs, width)
                self._made[key] = PlacementProblem(self._graph_of(count, samples, width), *groups)
            except (CaptureError, ClusterError) as refused:
                self._made[key] = refused
        if isinstance(made := self._made[key], PlacementProblem):
            return made
        raise made

    def wanted(self, counts: Iterable[int], width: int = 1) -> Iterator[PlacementProblem]:
        """Yield the step in those of some numbers of micro-batches in which it can be captured.

        Raises:
            CaptureError, ClusterError: the step can't be captured in any number that was wanted in groups of this
                width so far; it is the first refusal.
            PlanError: no number was wanted so far.
        """
        for count in dict.fromkeys(counts):
            try:
                problem = self(count, width)
            except (CaptureError, ClusterError):
                continue
            yield problem
        if not self.problems(width):
            raise next(iter(self._refused(width).values()), PlanError("no number of micro-batches: give at least one"))

    def problems(self, width: int = 1) -> dict[int, PlacementProblem]:
        """Return the step in the numbers of micro-batches in which it was captured so far."""
        made = self._of_width(width).items()
        return {count: problem for count, problem in made if isinstance(problem, PlacementProblem)}

    @property
    def left_out(self) -> dict[int, str]:
        """Numbers of micro-batches that the step can't be split into, and why."""
        return {count: str(refused) for count, refused in self._refused(1).items()}

    @property
    def no_groups(self) -> str:
        """Why the step has no tensor-parallel groups of some width that was wanted; "" if it has groups of all."""
        without = (self._refused(width) for width in self.widths if not self.problems(width))
        return next((str(why) for refused in without for why in refused.values()), "")

    def _refused(self, width: int) -> dict[int, CaptureError | ClusterError]:
        made = self._of_width(width).items()
        return {count: why for count, why in made if not isinstance(why, PlacementProblem)}

    def _of_width(self, wanted: int) -> dict[int, PlacementProblem | CaptureError | ClusterError]:
        """Return what was made of the whole batch in groups of a width, by its number of micro-batches."""
        whole = wanted, self.batch
        return {count: made for (count, *how), made in self._made.items() if (*how,) == whole}


def is_large(problem: PlacementProblem, count: int) -> bool:
    """Whether a step that is captured in some number of micro-batches is large in `count` of them."""
    return problem.num_ops / problem.graph.num_micro_batches * count > MOST_OPS


def widths_on(cluster: Cluster) -> tuple[int, ...]:
    """Return the widths of tensor-parallel groups for which a host has enough boards."""
    most = max(Counter(cluster.hosts[board] for board in cluster.computing).values(), default=1)
    return tuple(width for width in WIDTHS if width <= most)


def one_each(cluster: Cluster, counts: Iterable[int]) -> tuple[int, ...]:
    """Return the number of micro-batches that gives each device but CPUs one, unless `counts` has a multiple of it."""
    computing = len(cluster.computing)
    return () if computing < 2 or any(count % computing == 0 for count in counts) else (computing,)


def with_headroom(cluster: Cluster, headroom: int) -> Cluster:
    """Return a cluster whose devices have `headroom` bytes less memory.

    Raises:
        ClusterError: a device has no more memory than `headroom`, or `headroom` is negative.
    """
    if headroom < 0:
        raise ClusterError(f"a headroom of {headroom} bytes would add memory: give 0 or more")
    if headroom >= (least := int(cluster.memory.min())):
        has = f"a device of {cluster.name} has {format_bytes(least)}"
        raise ClusterError(f"a headroom of {format_bytes(headroom)} leaves no memory: {has}")
    return replace(cluster, devices=tuple(replace(of, memory=of.memory - headroom) for of in cluster.devices))
