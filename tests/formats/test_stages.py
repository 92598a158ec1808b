"""torch.distributed.pipelining runs models in the stages that are exported, or is said not to."""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placeto import load_cluster, simulate
from placeto.capture.trace import capture_inference, capture_training
from placeto.formats.exports import ExportError, ExportWarning, Stages, device_map, pipeline_stages
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from tests.formats import piped
from tests.formats.divided import linears
from tests.growth import assert_in_proportion
from tests.parts import Parts

X, TARGET = torch.randn(4, 8), torch.randn(4, 8)


def stages(model: nn.Module, count: int | None = None, devices: int = 2, micro_batches: int = 1) -> Stages:
    graph = capture_training(
        model, [X], lambda y, t: piped.loss(y, t), targets=[TARGET], name="model", micro_batches=micro_batches
    )
    problem = PlacementProblem(graph, load_cluster(f"{devices}xv100"))
    return pipeline_stages(simulate(problem, np.zeros(graph.num_ops, np.int64)), count)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "models"), [(2, tuple(piped.MODELS)), (3, ("Skip", "Chain"))])
def test_processes_train_the_stages_as_the_whole_model(count: int, models: tuple[str, ...], tmp_path: Path) -> None:
    """In three stages, what the first stage of Skip makes is read by the last one."""
    split = {name: stages(piped.MODELS[name](), devices=count).split_points for name in models}
    assert all(len(points) == count - 1 for points in split.values()), split
    given = [f"{name} {' '.join(points)}" for name, points in split.items()]
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.formats.piped", str(rank), str(count), str(tmp_path), *given],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for rank in range(count)
    ]
    outputs = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0] * count, outputs
    results = [[json.loads(line) for line in output.splitlines()] for output, _ in outputs]
    for name, *ranks in zip(split, *results, strict=True):
        assert all(rank["wrong"] == [] and rank["stages"] == count for rank in ranks), name
        assert ranks[-1]["same"], name
        trained = [path for rank in ranks for path in rank["trains"]]
        assert len(set(trained)) == len(trained), f"{name}: a parameter in two stages"


def test_tied_weights_and_modules_called_twice_stay_in_one_stage() -> None:
    assert stages(piped.Tied()).modules == (("one", "mid", "other"), ("rest",))
    assert stages(piped.Twice(), micro_batches=2).modules == (("a", "act", "b"), ("c",))
    with pytest.raises(ExportError, match=r"can run 2 stages, not 3: at mid, one\.weight is read before it by one and"):
        stages(piped.Tied(), 3, devices=4)
    with pytest.warns(
        ExportWarning, match=r"can run 2 stages, not 4: at mid, one\.weight is read before it by one and"
    ):
        assert len(stages(piped.Tied(), devices=4).modules) == 2
    whole = piped.Tied()
    whole.rest[0].weight = whole.one.weight
    with pytest.raises(
        ExportError, match=r"can run 1 stage, not 2: at mid, one\.weight .* behind it by rest\.0; torch"
    ):
        stages(whole)


class Late(nn.Module):
    """The last block reads the model's input."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = linears(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks[1](self.blocks[0](x)) + x
        return self.blocks[2](y)


class Early(Parts):
    """An output is made before the end."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        early = self.blocks[0](x).tanh()
        other = early.exp()
        return self.blocks[2](self.blocks[1](early)), other


def test_an_input_that_a_later_stage_reads_is_refused() -> None:
    assert stages(Late()).modules == (("blocks.0", "blocks.1"), ("blocks.2",))
    with pytest.raises(
        ExportError, match=r"can run 2 stages, not 3: .* behind it add reads the model's input x; torch"
    ):
        stages(Late(), 3, devices=4)

    class Towers(Late):
        def forward(self, x: Tensor) -> Tensor:
            return self.blocks[0](x) + self.blocks[1](x)

    with pytest.raises(ExportError, match=r"can run 1 stage, not 2: .*blocks\.1/addmm reads the model's input x"):
        stages(Towers())


def test_targets_of_a_loss_that_the_model_computes_are_given_to_the_last_stage() -> None:
    class WithLoss(piped.Skip):
        def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
            y: Tensor = super().forward(x)
            return y if target is None else piped.loss(y, target)

    graph = capture_training(WithLoss(), [X, TARGET])
    schedule = simulate(PlacementProblem(graph, load_cluster("2xv100")), np.zeros(graph.num_ops, np.int64))
    assert len(pipeline_stages(schedule).modules) == 2


def test_an_output_of_an_earlier_stage_is_refused() -> None:
    graph = capture_inference(Early(blocks=linears(3)), [X], name="early")
    schedule = simulate(PlacementProblem(graph, load_cluster("2xv100")), np.zeros(graph.num_ops, np.int64))
    with pytest.raises(ExportError, match=r"can run 1 stage, not 2: at .*, exp before it gives an output; torch"):
        pipeline_stages(schedule)


class Far(nn.Module):
    """What the first layer gives is read by the second, and at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.d(self.c(self.b(x))) + x * (x > 0)


def test_gradients_of_two_later_stages_are_refused_in_training() -> None:
    found = stages(Far(), 3, devices=4).modules
    assert found[0][:2] == ("a", "b"), "else what a gives is read in both later stages"
    with pytest.raises(
        ExportError, match=r"can run 3 stages, not 4: a/addmm is read by b/addmm and mul; .* one later stage only"
    ):
        stages(Far(), 4, devices=4)
    graph = capture_inference(Far(), [X])
    schedule = simulate(PlacementProblem(graph, load_cluster("4xv100")), np.zeros(graph.num_ops, np.int64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(pipeline_stages(schedule).modules) == 4


def test_exports_take_time_in_proportion_to_the_modules() -> None:
    """4,000 modules took 5 s together, now 0.3 s."""

    def exports(count: int) -> Callable[[], object]:
        ops: list[dict] = [{"name": "m0", "module": "m0", "time_us": {"*": 1.0}, "outputs": [8]}]
        for i in range(1, count):
            inputs = [[f"m{i - 1}", 0]]
            ops.append({"name": f"m{i}", "module": f"m{i}", "time_us": {"*": 1.0}, "outputs": [8], "inputs": inputs})
        problem = PlacementProblem(ComputationGraph.from_ops("chain", ops, "inference"), load_cluster("2xv100"))
        schedule = simulate(problem, np.arange(count) // (count // 2))

        def run() -> None:
            assert len(device_map(schedule).modules) == count
            assert pipeline_stages(schedule).split_points == (f"m{count // 2}",)

        return run

    assert_in_proportion(exports, 4000)
