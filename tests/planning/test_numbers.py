"""The number of micro-batches is chosen by placing the step in each."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

import placeto
from placeto.errors import PlacerError, RunError
from placeto.placers import load_placer
from placeto.placing import PlacedModel
from placeto.planning.numbers import place_in_best
from placeto.planning.single_ways import one_device
from placeto.planning.variants import COUNTS
from placeto.problem.cluster import save_cluster
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import PlacementResult
from tests.captures import linears, meta, square
from tests.cases import with_devices
from tests.command_line import fails, run
from tests.toys import random_graph, toy_cluster

FACTORY = """
import torch
from torch import nn

def net(batch: int = 4096):
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))), (torch.empty(batch, 1024),), lambda y: y.sum()
"""


class Block(nn.Module):
    """Keeps nine times its input for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(512, 2048, device="meta"), nn.Linear(2048, 512, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(gelu(self.up(x)))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x)
        return x


def blocks() -> tuple[nn.Module, tuple[Tensor], Any]:
    return Blocks(), (meta(16384, 512),), square


def chain() -> nn.Module:
    return linears(4, 1024, device="meta")


def test_the_best_number_gets_what_is_left_of_the_budget() -> None:
    found = placeto.place(
        chain(), (meta(8192, 1024),), cluster="4xv100", loss=square, micro_batches="auto", simulations=300
    )
    assert isinstance(found, PlacedModel)
    assert found.capture.step.count in COUNTS[1:], "a chain is no faster on several devices in one part"
    assert found.simulations <= 300
    assert found.schedule().makespan_us == found.makespan_us
    counts = [count for count, _, _ in found.history]
    assert counts == sorted(counts)
    assert counts[-1] <= found.simulations
    alone = placeto.place(chain(), (meta(8192, 1024),), cluster="4xv100", loss=square, simulations=300)
    assert found.makespan_us < 0.6 * alone.makespan_us


def test_numbers_that_dont_divide_the_batch_are_left_out_and_all_results_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "zoo.py").write_text(FACTORY)
    step, on = f"{tmp_path}/zoo.py:net", ("--cluster", "2xv100")
    many = "--micro-batches"
    options = many, "auto", "--set", "batch=4100", "--simulations", "90", "-o", tmp_path / "placement.json"
    assert run("place", step, *on, *options) == 0
    printed, told = capsys.readouterr()
    lines = {line.split()[0]: line for line in printed.splitlines()}
    assert f" not tried: {step}: a batch of 4100 can't be split into 8 micro-batches" in lines["8"]
    tried = {count: float(lines[count].split()[1]) for count in ("1", "2", "4")}
    best = min(tried, key=tried.__getitem__)
    assert lines["micro-batches"] == f"micro-batches {best}, the best of these after a third of the budget:"
    assert f"give --micro-batches {best} where" in told
    assert "of the best single device in any of these numbers of micro-batches\n" in printed
    assert (f"of the best single device in {best} micro-batches, " in printed) == (best != "1")
    again = many, best, "--set", "batch=4100", "--placement", tmp_path / "placement.json"
    assert run("simulate", step, *on, *again) == 0
    assert lines["makespan"] in capsys.readouterr().out


def test_auto_is_refused_where_nothing_is_chosen() -> None:
    with pytest.raises(TypeError, match="needs a cluster"):
        placeto.place(chain(), (meta(8, 1024),), micro_batches="auto", devices=["cpu:0"])
    graph = placeto.capture_inference(chain(), (meta(8, 1024),))
    with pytest.raises(TypeError, match="micro_batches is for modules"):
        placeto.place(graph, cluster="2xv100", micro_batches="auto")


def test_too_few_simulations_to_compare_numbers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "zoo.py").write_text(FACTORY)
    options = "--cluster", "2xv100", "--micro-batches", "auto", "--simulations", "20"
    assert fails(capsys, "place", f"{tmp_path}/zoo.py:net", *options) == (
        "error: 20 simulations are too few to compare 5 numbers of micro-batches: give at least 150, or say how "
        "many micro-batches to use\n"
    )


def test_numbers_that_the_placer_refuses_are_left_out() -> None:
    problems = {count: PlacementProblem(random_graph(count, 20), toy_cluster(2)) for count in COUNTS}

    def place(problem: PlacementProblem, simulations: int | None, seconds: float | None) -> PlacementResult:
        if problem is problems[2]:
            raise PlacerError("not two")
        return load_placer("multilevel")(problem, simulations=simulations, seconds=seconds)

    chosen = place_in_best(problems, place, simulations=200)
    assert chosen.left_out == {2: "not two"}
    assert chosen.result.simulations <= 200
    assert chosen.count == min(chosen.first, key=lambda count: chosen.first[count].makespan_us)


@pytest.mark.parametrize("placer", ["placeto", "multilevel"])
def test_where_memory_is_short_the_default_placer_also_plans(
    placer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_cluster(with_devices("2xv100", memory=140_000_000), tmp_path / "small.json")
    step, on, file = f"{__file__}:blocks", ("--cluster", tmp_path / "small.json"), tmp_path / "placement.json"
    options = "--placer", placer, "--micro-batches", "auto", "--simulations", "150", "-o", file
    assert run("place", step, *on, *options) == 0
    printed, told = capsys.readouterr()
    lines = {line.split()[0]: line for line in printed.splitlines()}
    if placer == "multilevel":
        assert "too much" in told
        return
    assert "recomputing" in lines["way"]
    assert lines["fits"].split() == ["fits", "yes"]
    count = lines["micro-batches"].split()[1].rstrip(",")
    assert f"give --micro-batches {count} where" in told
    assert run("simulate", step, *on, "--micro-batches", count, "--placement", file) == 0
    assert lines["makespan"] in capsys.readouterr().out


def test_a_placement_that_recomputes_is_not_compiled() -> None:
    module, inputs, loss = blocks()
    problem = PlacementProblem(
        placeto.capture_training(module, inputs, loss), with_devices("2xv100", memory=140_000_000)
    )
    result = one_device(problem, 0, ("h.0", "h.1")).placement
    assert result is not None
    found = PlacedModel(**{field.name: getattr(result, field.name) for field in fields(PlacementResult)}, module=module)
    with pytest.raises(RunError, match=r"compile can't recompute h\.0, h\.1 for the backward pass: run"):
        found.compile(["cpu:0", "cpu:1"])


def test_a_sequence_in_dimension_0_is_kept_whole() -> None:
    result = placeto.place(
        nn.LSTM(4, 6),
        [torch.empty(8, 4, 4)],
        loss=lambda output: square(output[0]),
        cluster="2xv100",
        micro_batches="auto",
        simulations=60,
    )
    assert (result.problem.graph.micro_batches < 0).all()
