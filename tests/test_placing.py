import copy
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import placeto
from placeto.errors import CaptureError, ClusterError, CostsError, PlacerError, PlanError
from tests.captures import Made, chained, meta, mlp


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
    result = placeto.place(mlp(), (meta(32, 8),), cluster="2xv100", devices=None, placer="single", simulations=1e3)
    assert result.peak_memory == {"gpu:0": int(result.schedule().peak_memory[0]), "gpu:1": 0}
    shown = r"PlacementProblem\(ComputationGraph\('Sequential', inference: \d+ ops, .*GFLOP, parameters 848 B\), "
    assert re.fullmatch(shown + r"Cluster\('2xv100', 2 v100, memory 32\.0 GB\)\)", repr(result.problem))
    assert repr(result).startswith("PlacementResult('Sequential', inference, ")
    assert "1 of 2 devices, fits, 1 simulations in " in repr(result)
    assert repr(result).endswith(" s by single)")


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda g, c: placeto.PlacementProblem(g, "4xv100"), r"Cluster, not str: write load_cluster\('4xv100'\)"),
        (lambda g, c: placeto.PlacementProblem("m.json", c), r"Graph, not str: write load_graph\('m.json'\)"),
        (lambda g, c: placeto.PlacementProblem(torch.nn.ReLU(), c), r"not ReLU: write capture_training\(module"),
        (lambda g, c: placeto.simulate(g, [0]), r"is needed, not ComputationGraph.*write PlacementProblem\(graph"),
        (lambda g, c: placeto.load_placer("placeto")("4xv100"), r"is needed, not '4xv100': write PlacementProblem"),
    ],
)
def test_what_is_no_problem_is_refused_with_what_to_write(made, says) -> None:
    graph = placeto.ComputationGraph.from_ops("one", [{"name": "a"}])
    with pytest.raises(TypeError, match=says):
        made(graph, placeto.load_cluster("2xv100"))


@pytest.mark.parametrize(("sizes", "cluster"), [((8, 1024, 16384, 8), "4xv100"), ((6, 256, 4096, 4), "2xv100")])
def test_the_order_that_a_search_has_chosen_stays(sizes: tuple[int, int, int, int], cluster: str) -> None:
    """An order of its own, or a named one: by the cluster's order these steps in micro-batches take longer."""
    result = placeto.place(chained(*sizes, bias=False), cluster=cluster, placer="pipeline")
    by_cluster = placeto.PlacementProblem(result.problem.graph, placeto.load_cluster(cluster))
    assert result.makespan_us == result.schedule().makespan_us
    assert result.makespan_us < placeto.simulate(by_cluster, result.placement).makespan_us


def test_a_placed_module_runs_in_a_training_loop() -> None:
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


def test_a_placed_module_is_not_pickled() -> None:
    placed = placeto.place(mlp(), (torch.randn(4, 8),), cluster="2xv100", placer="single")
    for one in (placed, placed.capture, placed.compile(devices=["cpu:0", "cpu:1"])):
        with pytest.raises(TypeError, match=r"can't be pickled, .* placeto\.save_placement"):
            pickle.dumps(one)
    np.testing.assert_array_equal(copy.copy(placed).placement, placed.placement)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_deep_copy_of_a_placed_module_is_a_twin_with_parameters_of_its_own(micro_batches: int) -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 3))
    loss = Made(lambda self, y: (y * self.weight).square().mean(), weight=nn.Parameter(torch.ones(3)))
    x = torch.randn(6, 8)
    made = placeto.place(module, [x], cluster="2xv100", loss=loss, placer="roundrobin", micro_batches=micro_batches)
    step = made.compile(devices=["cpu:0", "cpu:1"])
    step(x)
    for parameter in module.parameters():
        parameter.grad = None
    loss.weight.grad = None
    other, its_loss, twin, again = copy.deepcopy((module, loss, step, made))
    np.testing.assert_array_equal(again.placement, made.placement)
    assert twin.module is again.module is other
    for _ in range(2):  # gradients add up
        values = []
        for one in (step, twin):
            torch.manual_seed(1)
            values.append(one(x))
        assert torch.equal(*values)
    pairs = zip([*module.parameters(), loss.weight], [*other.parameters(), its_loss.weight], strict=True)
    assert all(mine is not its and torch.equal(mine.grad, its.grad) for mine, its in pairs)
    assert all(torch.equal(mine, its) for mine, its in zip(module.buffers(), other.buffers(), strict=True))
    with torch.no_grad():
        module[0].weight.zero_()
    torch.manual_seed(1)
    assert step(x) != values[0]
    for one in (twin, again.compile(devices=["cpu:0", "cpu:1"])):
        torch.manual_seed(1)
        assert torch.equal(one(x), values[0])


def test_a_deep_copy_that_would_do_another_step_is_refused() -> None:
    module, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU()), torch.randn(4, 8)
    loss = lambda y: y.sum() + module[0].weight.sum()  # noqa: E731
    of_module = placeto.place(module, [x], cluster="2xv100", loss=loss, placer="single")
    message = "the step of a deep copy is another than was captured, as .* or its loss reads the module itself"
    with pytest.raises(CaptureError, match=message):
        copy.deepcopy(of_module)
    placed = placeto.place(module, [x], cluster="2xv100", placer="single")
    module[1] = nn.Sigmoid()
    for one in (placed, placed.compile(devices=["cpu:0", "cpu:1"])):
        with pytest.raises(CaptureError, match=message):
            copy.deepcopy(one)


def test_a_module_is_placed_on_devices_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placeto.placing.PROFILE_SECONDS", 0.1)
    module, x = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)), torch.randn(5, 8)
    expected = copy.deepcopy(module).eval()(x)
    placed = placeto.place(module, [x], devices=["cpu:0", "cpu:1"], placer="heft")
    assert placed.problem.cluster.device_names == ("cpu:0", "cpu:1")
    assert int(module[1].num_batches_tracked) == 0, "profiling leaves the module as it was"
    step = placed.compile()
    assert torch.equal(step(x), expected)


@pytest.mark.parametrize(
    ("named", "error", "says"),
    [
        ({"cluster": 4}, ClusterError, "a cluster is the name of a preset, such as '4xv100', .*, not 4"),
        ({"cluster": "nope.json"}, ClusterError, "cluster 'nope.json': there is no such file; presets are 2xk80"),
        ({"cluster": None, "devices": "cpu:0"}, TypeError, "must be a list of names, such as .*, not 'cpu:0'"),
        ({"loss": "mse"}, CaptureError, "the loss must be a function of the module's output, not a str"),
        ({"loss": torch.sum, "optimizer": "sdg"}, ValueError, "optimizer must be one of sgd, .*, not 'sdg'"),
        (
            {"placer": "hefty"},
            PlacerError,
            "no placer and no checkpoint is called 'hefty'; did you mean heft\\? Placers: ",
        ),
        ({"simulations": -1}, PlacerError, "simulations must be >= 0, not -1"),
        ({"seed": 2**63, "seconds": 0}, PlacerError, "seconds must be > 0, not 0; seed must be <= 92233"),
        ({"simulations": 10**400}, PlacerError, "simulations must be <= .*, not 10000"),
        ({"micro_batches": 2.0}, CaptureError, "micro_batches must be a whole number, not 2.0"),
        ({"costs": "nope.json"}, CostsError, "costs 'nope.json': there is no such file; by name there are efficiency"),
        ({"costs": 4}, TypeError, "needs a cost model, not 4: write placeto.problem.costs.load_costs"),
        ({"whole_modules": "0"}, TypeError, "whole_modules must be True, or a list of paths of modules, not '0'"),
        ({"whole_modules": ["nothing"]}, PlanError, "Sequential has no module 'nothing'; there are 0"),
        ({"model": "net.json"}, TypeError, r"a module or a graph, not 'net.json': write load_graph\('net.json'\)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_mistakes_are_told_in_a_sentence(named: dict[str, object], error: type[Exception], says: str) -> None:
    arguments: dict[str, Any] = {"model": mlp(), "inputs": [meta(32, 8)], "cluster": "2xv100", "placer": "single"}
    with pytest.raises(error, match=says):
        placeto.place(**arguments | named)


def test_what_is_of_modules_is_refused_for_graphs() -> None:
    graph = placeto.capture_inference(mlp(), [meta(32, 8)])
    given = {
        "loss": torch.sum,
        "inputs": [meta(32, 8)],
        "targets": np.zeros(3),
        "precision": "bf16",
        "micro_batches": 4,
    }
    for name, value in given.items():
        with pytest.raises(TypeError, match=f"{name} is for modules: a graph is captured already"):
            placeto.place(graph, cluster="2xv100", placer="single", **{name: value})


def test_files_under_other_names(tmp_path: Path) -> None:
    result = placeto.place(mlp(), [meta(32, 8)], cluster="2xv100", placer="single")
    for save, of in (
        (placeto.save_placement, result),
        (placeto.save_graph, result.problem.graph),
        (placeto.save_cluster, result.problem.cluster),
    ):
        with pytest.raises(ValueError, match=r"a\.txt: must end in \.json or \.json\.gz"):
            save(of, tmp_path / "a.txt")  # type: ignore[operator]
        with pytest.raises(ValueError, match=r", then a path, not 'a\.json'"):
            save("a.json", of)  # type: ignore[operator]
        with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*no/a\.json'$"):
            save(of, tmp_path / "no" / "a.json")  # type: ignore[operator]
    assert list(tmp_path.iterdir()) == []
    for load in (placeto.load_graph, placeto.load_placement):
        with pytest.raises(ValueError, match="the path of a file is needed, not 4"):
            load(4)  # type: ignore[operator]


def test_what_has_no_values_is_not_run() -> None:
    with torch.device("meta"):
        module = nn.Linear(8, 4)
    placed = placeto.place(module, [meta(32, 8)], cluster="2xcpu-core", placer="single")
    with pytest.raises(ValueError, match="weight is on 'meta', where nothing can be run: build the module on the cpu"):
        placed.compile(devices=["cpu:0", "cpu:1"])
    with pytest.raises(TypeError, match="devices must be a list of names"):
        placed.compile(devices="cpu:0")
    for where in ({}, {"cluster": "2xv100", "devices": ["cpu:0"]}):
        with pytest.raises(TypeError, match="a cluster, or devices of this machine, and not both"):
            placeto.place(module, [meta(32, 8)], **where)
