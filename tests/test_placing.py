import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import placeto
from tests.captures import meta, mlp


def test_a_module_is_captured_and_placed(tmp_path: Path) -> None:
    inputs = (meta(32, 8),)
    trained = placeto.place(mlp(), inputs, cluster="2xv100", loss=lambda y, t: (y - t).sum(), targets=(meta(32, 4),))
    assert trained.problem.graph.mode == "training"
    assert (trained.placer, trained.simulations) == ("placeto", 1000)
    assert trained.makespan_us == trained.schedule().makespan_us
    used = placeto.place(mlp(), inputs, cluster=placeto.load_cluster("2xv100"), placer="heft", simulations=3)
    assert used.problem.graph.mode == "inference"
    assert (used.placer, used.simulations) == ("heft", 3)
    again = placeto.place(used.problem.graph, cluster="2xv100", placer="heft", simulations=3)
    np.testing.assert_array_equal(again.placement, used.placement)
    assert set(trained.devices()) == set(trained.problem.graph.op_names)
    assert set(trained.devices().values()) <= {"gpu:0", "gpu:1"}
    placeto.save_placement(trained, tmp_path / "p.json")
    read = placeto.load_placement(tmp_path / "p.json")
    assert read.placement == trained.devices()
    assert (read.makespan_us, read.fits, read.placer) == (trained.makespan_us, True, "placeto")


def test_a_result_is_described_in_a_line() -> None:
    result = placeto.place(mlp(), (meta(32, 8),), cluster="2xv100", placer="single")
    problem = repr(result.problem)
    assert problem == f"PlacementProblem({result.problem.graph!r}, {result.problem.cluster!r})"
    assert "ComputationGraph('Sequential', inference: " in problem
    assert " ops, " in problem
    assert "GFLOP, parameters 848 B)" in problem
    assert repr(result.problem.cluster) == "Cluster('2xv100', 2 v100, memory 32.0 GB)"
    assert repr(result).startswith("PlacementResult('Sequential', ")
    assert "1 of 2 devices, fits, 1 simulations in " in repr(result)
    assert repr(result).endswith(" s by single)")


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda g, c: placeto.PlacementProblem(g, "4xv100"), r"Cluster, not str: write load_cluster\('4xv100'\)"),
        (lambda g, c: placeto.PlacementProblem("m.json", c), r"Graph, not str: write load_graph\('m.json'\)"),
        (lambda g, c: placeto.PlacementProblem(torch.nn.ReLU(), c), r"not ReLU: write capture_training\(module"),
        (lambda g, c: placeto.simulate(g, [0]), r"is needed, not ComputationGraph.*write PlacementProblem\(graph"),
        (lambda g, c: placeto.load_placer("heft")(g), r"is needed, not ComputationGraph.*write PlacementProblem"),
        (lambda g, c: placeto.load_placer("placeto")("4xv100"), r"is needed, not '4xv100': write PlacementProblem"),
    ],
)
def test_what_is_no_problem_is_refused_with_what_to_write(made, says) -> None:
    graph = placeto.ComputationGraph.from_ops("one", [{"name": "a"}])
    with pytest.raises(TypeError, match=says):
        made(graph, placeto.load_cluster("2xv100"))


def test_a_placed_module_runs_in_a_training_loop() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    twin = copy.deepcopy(module)
    x, target = torch.randn(5, 8), torch.randint(3, (5,))
    loss = nn.functional.cross_entropy
    placed = placeto.place(module, [x], cluster="2xcpu-core", loss=loss, targets=[target], placer="roundrobin")
    with pytest.raises(ValueError, match=r"compile needs 2 devices of this machine, for .*, not 0"):
        placed.compile()
    step = placed.compile(devices=["cpu:0", "cpu:1"])
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (module, twin)]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = loss(twin(x), target)
        expected.backward()
        assert torch.equal(step(x, target), expected)
        for optimizer in optimizers:
            optimizer.step()
    torch.set_num_threads(before)


def test_a_module_is_placed_on_devices_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placeto.placing.PROFILE_SECONDS", 0.1)
    module, x = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)), torch.randn(5, 8)
    expected = copy.deepcopy(module).eval()(x)
    placed = placeto.place(module, [x], devices=["cpu:0", "cpu:1"], placer="heft")
    assert placed.problem.cluster.device_names == ("cpu:0", "cpu:1")
    assert int(module[1].num_batches_tracked) == 0, "profiling leaves the module as it was"
    step = placed.compile()
    assert torch.equal(step(x), expected)


def test_where_to_place() -> None:
    module, x = nn.Linear(4, 4), torch.randn(2, 4)
    for where in ({}, {"cluster": "2xv100", "devices": ["cpu:0"]}):
        with pytest.raises(TypeError, match="a cluster, or devices of this machine, and not both"):
            placeto.place(module, [x], **where)
