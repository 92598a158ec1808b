"""Ways with tensor-parallel groups: each device of a plan is a group of boards."""

from functools import cache

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

import placeto
from placeto.capture import capture_training
from placeto.errors import PlacementError, PlanError
from placeto.formats.exports import device_map, torch_pipeline
from placeto.formats.exports.layer_tools import megatron, ranks_by_stage, vllm
from placeto.formats.exports.torchtitan import save_torchtitan, torchtitan
from placeto.formats.exports.whole_layers import whole_layers
from placeto.formats.placement import load_placement
from placeto.formats.plan import load_plan, save_plan
from placeto.planning.planned_steps import PIPELINES, Kind, Plans
from placeto.planning.variants import Variants
from placeto.planning.ways import plans_of
from placeto.problem.cluster import load_cluster
from placeto.problem.cluster.groups import grouped
from placeto.problem.costs import EFFICIENCY
from placeto.problem.graph import ComputationGraph
from placeto.problem.step.plan import check_plan_of
from tests.captures import square
from tests.cases import with_devices

CLUSTER = "4xv100"
PARALLEL = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.first = nn.Linear(8, size)
        self.blocks = nn.ModuleList(Block(size) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


@cache
def planned(parallel: bool = True, runnable_by: str | None = None, cluster: str = CLUSTER, size: int = 2048) -> Plans:
    """Two samples on four boards."""
    with torch.device("meta"):
        module, x = Net(size), torch.empty(2, 4096, 8)
    how = {"precision": "fp16", "simulations": 0, "micro_batches": (1, 2), "runnable_by": runnable_by}
    return placeto.plan(module, [x], cluster=cluster, loss=square, parallel=PARALLEL if parallel else None, **how)


def test_groups_work_together_where_there_are_fewer_samples_than_boards() -> None:
    plans = planned()
    assert {step.width for step in plans.steps} == {1, 2, 4}
    assert (plans.best.kind, plans.best.shape) == (Kind.GRADIENTS_SHARDED, "2 replicas, groups of 2")
    assert plans.best.plan.line(plans.best.result.problem.cluster) == "2 replicas, groups of 2, 2 micro-batches, ZeRO 2"
    assert plans.best.run_by == "torch FSDP, TP"
    for step in plans.steps:
        assert step.result.problem.width == step.width
        assert step.result.problem.num_devices * step.width == 4
        assert (step.kind == Kind.GROUP) == (step.plan is not None and len(step.plan.used) == 1 and step.width > 1)
    alone = min(step.step_us for step in plans.steps if step.kind == Kind.ONE)
    of_group = {step.width: step.step_us for step in plans.steps if step.kind == Kind.GROUP}
    assert {*of_group} == {2, 4}
    assert all(alone / width < us < alone for width, us in of_group.items())


def test_nothing_changes_without_a_parallel_plan() -> None:
    plain, groups = planned(False), planned()
    assert {step.width for step in plain.steps} == {1}
    assert not plain.no_groups
    best = next(step for step in groups.steps if step.width == 1)
    assert plain.best.step_us == best.step_us


def test_a_width_that_does_not_go_is_told() -> None:
    assert "a host of 3xv100 has 3 boards" in planned(cluster="3xv100", size=64).no_groups
    odd = planned(cluster="8xv100", size=63)
    assert "up.weight has the sizes 252 x 63, which groups of 8 don't divide" in odd.no_groups
    assert {step.width for step in odd.steps} == {1, 2, 4}


@pytest.mark.parametrize(("share", "counts"), [(0.5, {1}), (0.4, {1, 2, 4, 8})])
def test_what_fits_with_recomputed_blocks_bounds_what_is_captured_in_groups(share: float, counts: set[int]) -> None:
    """Nothing fits without recomputation or groups, and with the smaller share nothing fits without groups."""
    captured = set[int]()
    with torch.device("meta"):
        module, x = Net(256), torch.empty(64, 256, 8)

    def graph_of(count: int, samples: int, width: int) -> ComputationGraph:
        captured.update([count] if width == 2 else [])
        return capture_training(
            module, [x], square, micro_batches=count, width=width, parallel=PARALLEL, precision="fp16"
        )

    def on(memory: int) -> Plans:
        cluster = with_devices(CLUSTER, memory=memory)
        return plans_of(Variants(graph_of, cluster, EFFICIENCY, 64, grouped=True), (1, 2, 4, 8), simulations=0)

    memory = int(share * on(10**12).best.used)
    captured.clear()
    best = on(memory).best
    assert best.fits
    assert (best.width == 1) == (counts == {1})
    assert captured == counts


def test_each_file_is_read_as_it_was_written(tmp_path) -> None:
    boards = load_cluster(CLUSTER)
    for number, step in enumerate(each for each in planned().steps if each.width > 1):
        save_plan(step.file(boards, 2), path := tmp_path / f"{number}.json")
        file = load_plan(path)
        file.check_cluster(boards)
        assert file.plan["width"] == step.width
        if step.placement is not None:
            read, problem = load_placement(path), step.placement.problem
            assert read.width == step.width
            assert read.plan_on(grouped(boards, step.width)) == step.plan
            check_plan_of(step.plan, problem, read.devices(problem.graph, problem.cluster))


def test_torchtitan_and_megatron_are_told_of_the_groups(tmp_path) -> None:
    for tool in ("torchtitan", "megatron"):
        steps = [step for step in planned(True, tool).steps if step.kind in PIPELINES and step.width == 2]
        assert steps
        for step in steps:
            assert step.shape.endswith(", groups of 2")
            layers = whole_layers(step.placed, tool)
            assert sorted(ranks_by_stage(layers)) == [0, 1, 2, 3]
            if tool == "megatron":
                assert "--tensor-model-parallel-size 2\n" in megatron(layers)
                assert "DEVICES=(gpu:0 gpu:1 gpu:2 gpu:3)" in megatron(layers)
                continue
            exported = torchtitan(step.placed)
            assert exported.pipeline.step.makespan_us == step.step_us
            save_torchtitan(exported, tmp_path)
            text = (tmp_path / "parallelism.py").read_text()
            assert '"pipeline_parallel_degree": 2,' in text
            assert '"tensor_parallel_degree": 2,' in text
            assert "DEVICES = ['gpu:0', 'gpu:1', 'gpu:2', 'gpu:3']" in text


def test_other_tools_have_no_pipelines_of_groups() -> None:
    """And torch has no ZeroRedundancyOptimizer for groups."""
    kinds = {step.kind for step in planned(True, "torch").steps if step.width > 1}
    assert {Kind.GROUP, Kind.REPLICAS} <= kinds
    assert not kinds & {Kind.SHARDED, *PIPELINES}
    step = next(step for step in planned().steps if step.kind in PIPELINES and step.width == 2)
    for export in (
        lambda: torch_pipeline(step.placed),
        lambda: device_map(step.placed),
        lambda: vllm(whole_layers(step.placed, "vLLM", trains=False)),
    ):
        with pytest.raises((PlacementError, PlanError), match=r"tensor-parallel groups of 2 boards, which .* doesn't"):
            export()


def test_blocks_without_a_border_between_them_are_planned_for() -> None:
    """The items of its list are never called, and a norm is behind them: the borders of stages stay in order."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            pairs = ({"up": nn.Linear(1024, 4096), "down": nn.Linear(4096, 1024)} for _ in range(3))
            self.layers, self.norm = nn.ModuleList(nn.ModuleDict(pair) for pair in pairs), nn.LayerNorm(1024)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = x + layer["down"](layer["up"](x).relu())
            return self.norm(x)

    with torch.device("meta"):
        module, x = Net(), torch.empty(2048, 1024)
    shards = {"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()}
    how = {"loss": square, "parallel": shards, "micro_batches": [1, 4], "simulations": 0}
    plans = placeto.plan(module, [x], cluster="8xh100", **how)
    assert {1, 2} <= {step.width for step in plans.steps}
