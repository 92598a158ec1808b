from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from graphs import SHIPPED as FAMILIES
from graphs import SPLITS, Family, cifar10, nmt, ptb, regenerate, store
from graphs.__main__ import main
from graphs.ops import ACTIVATIONS, highway, lstm_cell
from graphs.training_step import TrainingStep
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.graphs.learning import assert_learns

ALL = [
    (name, split, index)
    for name, family in FAMILIES.items()
    for split, n in family.splits.items()
    for index in range(n)
]


@pytest.fixture(scope="module")
def shipped() -> dict[str, ComputationGraph]:
    return {f"{name}:{split}:{index}": FAMILIES[name].load(split, index) for name, split, index in ALL}


def test_every_family_has_its_splits() -> None:
    assert list(FAMILIES) == ["cifar10", "ptb", "nmt"]
    assert all(family.name == name and family.description for name, family in FAMILIES.items())
    assert all(dict(family.splits) == {"train": 32, "validation": 8, "test": 32} for family in FAMILIES.values())


def test_shipped_graphs_are_training_steps_of_the_promised_size(shipped: dict[str, ComputationGraph]) -> None:
    for name, graph in shipped.items():
        assert graph.name == name
        assert graph.mode == "training"
        assert 300 <= graph.num_ops <= 2500
        kinds = set(graph.op_types)
        assert "aten.nll_loss_backward" in kinds
        free = (graph.flops == 0) & (graph.bytes_accessed == 0)
        assert np.all(graph.colocation[free] >= 0)
        assert np.all(free[graph.param_bytes > 0] | (np.array(graph.op_types)[graph.param_bytes > 0] != "parameter"))


def test_shipped_graphs_differ(shipped: dict[str, ComputationGraph]) -> None:
    assert len({graph.hash for graph in shipped.values()}) == len(shipped) == 216


@pytest.mark.parametrize("cluster", ["4xv100", "4xp100", "8xv100"])
def test_groups_are_neither_few_nor_many(shipped: dict[str, ComputationGraph], cluster: str) -> None:
    # the two had 25 and 19 while light ops were joined without end
    for name in ["ptb:validation:3", "ptb:test:29", *list(shipped)[::27]]:
        problem = PlacementProblem(shipped[name], load_cluster(cluster))
        assert 30 <= group_ops(problem).num_groups <= 300, name


def test_every_gradient_stays_with_its_parameter(shipped: dict[str, ComputationGraph]) -> None:
    for name, graph in shipped.items():
        used = np.zeros(len(graph.output_bytes), bool)
        used[graph.edge_tensor] = True
        made_by = np.repeat(np.arange(graph.num_ops), np.diff(graph.output_ptr))
        result = np.bincount(made_by[~used], minlength=graph.num_ops) > 0  # has an output that no op reads
        final = result & np.array(["grad/" in op for op in graph.op_names])
        homes = set(graph.colocation[graph.trained_bytes > 0].tolist())
        assert -1 not in homes, name
        assert homes <= set(graph.colocation[final].tolist()), name


def test_most_graphs_fit_one_device_and_all_fit_four(shipped: dict[str, ComputationGraph]) -> None:
    cluster = load_cluster("4xv100")
    peaks = []
    for graph in shipped.values():
        schedule = simulate(PlacementProblem(graph, cluster), np.zeros(graph.num_ops, np.int64))
        peaks.append(schedule.peak_memory[0] / cluster.memory[0])
    assert np.mean(np.array(peaks) <= 1.0) > 0.95
    assert max(peaks) < 3.0


@pytest.mark.parametrize("family", FAMILIES)
def test_shipped_data_are_small(family: str) -> None:
    assert (store.DATA / f"{family}.zip").stat().st_size <= 5e6


@pytest.mark.parametrize(
    ("family", "split", "index"),
    [("cifar10", "test", 18), ("ptb", "train", 3), ("nmt", "validation", 7)],  # small ones
)
def test_a_graph_captured_again_is_the_shipped_one(family: str, split: str, index: int) -> None:
    captured = FAMILIES[family].capture(split, index)
    assert captured.hash == FAMILIES[family].load(split, index).hash, "run: python -m graphs regenerate"
    assert captured.name == f"{family}:{split}:{index}"


SMALL = {
    "cifar10": cifar10.Network(
        wiring=(((0, "conv3"), (1, "separable5")), ((2, "average"), (0, "maximum")), ((2, "identity"), (3, "conv5"))),
        stages=(1, 2),
        width=4,
        resolution=16,
        batch=3,
    ),
    "ptb": ptb.Network(
        cells=(((0, "tanh"), (0, "relu"), (1, "sigmoid"), (1, "identity")),) * 2, hidden=4, steps=5, block=2, batch=3
    ),
    "nmt": nmt.Network(
        encoder_layers=2, decoder_layers=3, source=3, target=5, hidden=4, words=7, block=2, batch=3, feed=True
    ),
}


def small(family: str) -> TrainingStep:
    module = {"cifar10": cifar10, "ptb": ptb, "nmt": nmt}[family]
    return module.training_step(SMALL[family])  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", FAMILIES)
def test_models_really_train(family: str) -> None:
    step = small(family)
    for parameter in step.module.parameters():
        nn.init.normal_(parameter, std=0.3)
    assert_learns(step, 7, 0.05, 10)


def test_gradients_of_the_fused_ops() -> None:
    rng = torch.Generator().manual_seed(0)
    gates, cell, pre, previous = (
        torch.randn(2, size, generator=rng, dtype=torch.float64, requires_grad=True) for size in (12, 3, 6, 3)
    )
    torch.autograd.gradcheck(lambda g, c: lstm_cell(g, c)[:2], (gates, cell))
    for activation in ACTIVATIONS:
        torch.autograd.gradcheck(lambda a, h, f=activation: highway(a, h, f)[0], (pre, previous))


def test_highway_mixes_by_its_gate() -> None:
    pre, previous = torch.tensor([[0.0, -2.0]]), torch.tensor([[3.0]])
    assert highway(pre, previous, "relu")[0].item() == 1.5  # half of relu(-2) and half of 3
    assert highway(pre, previous, "identity")[0].item() == 0.5


def _tiny_family(data: Path) -> Family:
    def sample(rng: np.random.Generator) -> TrainingStep:
        width = int(rng.integers(2, 1000))
        return TrainingStep(nn.Linear(width, 2), (torch.empty(1, width),), (), lambda y: y.sum())

    return Family("tiny", "one layer", sample, splits={"train": 3, "test": 1}, data=data)


def test_regenerate_writes_what_load_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    family = _tiny_family(tmp_path / "data")
    monkeypatch.setitem(FAMILIES, "tiny", family)
    with pytest.raises(FileNotFoundError):
        family.load("train", 0)
    main(["regenerate", "--family", "tiny", "--workers", "1"])
    assert "tiny.zip: 4 graphs" in capsys.readouterr().out
    first = (tmp_path / "data" / "tiny.zip").read_bytes()
    graphs = [family.load(split, index) for split, size in family.splits.items() for index in range(size)]
    assert [graph.hash for graph in graphs] == [
        family.capture(split, index).hash for split, size in family.splits.items() for index in range(size)
    ]
    assert len({graph.hash for graph in graphs}) == 4
    regenerate.regenerate("tiny", 1)
    assert (tmp_path / "data" / "tiny.zip").read_bytes() == first


def test_store_keeps_everything(tmp_path: Path) -> None:
    ops = [
        {"name": "a", "outputs": [4, 8], "flops": 2.5, "param_bytes": 3, "colocation": "x"},
        {"name": "b", "inputs": [["a", 1], ["a", 0]], "module": "m.0", "colocation": "x"},
        {"name": "c", "tensors": ["m.table", "m.again"], "reads": ["x['it'][0]"]},
    ]
    graph = ComputationGraph.from_ops("one", ops, mode="inference")
    store.save([graph], tmp_path / "some.zip")
    again = store.load(tmp_path / "some.zip", "one")
    assert (again.hash, again.name, again.mode) == (graph.hash, "one", "inference")
    assert again.to_ops() == graph.to_ops()
    with pytest.raises(store.StoreError, match=r"some\.zip: .*no item named 'two'"):
        store.load(tmp_path / "some.zip", "two")


def test_splits_can_be_read_only() -> None:
    with pytest.raises(TypeError):
        SPLITS["train"] = 1  # type: ignore[index]
