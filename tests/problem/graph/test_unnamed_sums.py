"""Graph files from before ops named the parameter whose gradient they add up."""

from pathlib import Path

import pytest
from torch import nn

from placeto.problem.graph import ComputationGraph, load_graph, save_graph
from placeto.problem.graph.gradient_sums import gradient_sums
from tests.captures import Shared, meta, mlp, training


@pytest.mark.parametrize("module", [mlp(), Shared(), nn.Bilinear(8, 8, 4)])
def test_sums_of_older_files_are_those_that_a_capture_writes(module: nn.Module, tmp_path: Path) -> None:
    inputs = [meta(12, 8)] * (2 if isinstance(module, nn.Bilinear) else 1)
    graph = training(module, *inputs, micro_batches=4)
    records = [{key: value for key, value in record.items() if key != "gradient_of"} for record in graph.to_ops()]
    save_graph(ComputationGraph.from_ops(graph.name, records), tmp_path / "old.json")
    read = load_graph(tmp_path / "old.json")
    assert read.gradient_of == graph.gradient_of
    assert gradient_sums(read).addition.tolist() == gradient_sums(graph).addition.tolist()
    assert any(read.gradient_of)


def test_a_file_without_gradients_is_left_as_it_is(tmp_path: Path) -> None:
    save_graph(training(mlp(), meta(4, 8)), tmp_path / "whole.json")
    assert not any(load_graph(tmp_path / "whole.json").gradient_of)
