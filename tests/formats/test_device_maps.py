"""accelerate runs models by the device maps: its own hooks, two devices, the same output to the bit."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placeto import load_cluster, load_graph, save_graph, simulate
from placeto.capture.trace import capture_inference
from placeto.errors import PlacementError
from placeto.formats.exports import DeviceMap, device_map
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.whole_modules import module_units, whole_modules
from tests.forked_ranks import run_ranks
from tests.formats import divided
from tests.formats.torch_toys import on_modules

X, WORDS = torch.randn(2, 5, 8), torch.arange(10).reshape(2, 5)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each model in a process of its own, which registers devices."""
    pytest.importorskip("accelerate")
    told = run_ranks("tests.formats.dispatched", ranks=1, folder=tmp_path_factory.mktemp("dispatched"))
    return {result["name"]: result for result in map(json.loads, told.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*divided.MODELS, "Llama", "T5"])
def test_accelerate_runs_a_model_on_two_devices(name: str, results: dict[str, dict[str, Any]]) -> None:
    if name not in divided.MODELS and find_spec("transformers") is None:
        pytest.skip("transformers isn't installed")
    assert results[name]["problems"] == []
    assert bool(results[name]["divided"]) is (name not in divided.UNDIVIDED)


def placed(model: nn.Module, x: Tensor, on: dict[str, int], graph: ComputationGraph | None = None) -> DeviceMap:
    """The map where the ops of modules that begin so are on these devices, others on the first."""
    return device_map(on_modules(graph or capture_inference(model, [x]), on, "2xv100"))


def test_a_map_from_a_file_is_that_of_the_module(tmp_path: Path) -> None:
    for make, x in ((divided.class_token, X), (divided.buffers, X), (divided.shared_embedding, WORDS)):
        model = make()
        save_graph(capture_inference(model, [x]), tmp_path / "g.json")
        again = placed(model, x, {"blocks.1": 1, "encoder": 1}, load_graph(tmp_path / "g.json")).modules
        assert again == placed(model, x, {"blocks.1": 1, "encoder": 1}).modules
        names = [*dict(model.named_parameters(remove_duplicate=False)), *dict(model.named_buffers())]
        assert all(any(name == key or name.startswith(f"{key}.") for key in again) for name in names)


def test_parameters_that_the_step_does_not_read_go_with_their_module() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    graph = capture_inference(model, [X])
    idle = [
        {"name": f"{path}.weight", "type": "parameter", "module": path, "param_bytes": 4, "outputs": [4]}
        for path in ("pooler", "spare.0")
    ]
    more = ComputationGraph.from_ops("more", [*graph.to_ops(), *idle], graph.mode)
    found = placed(model, X, {"1": 1, "pooler": 1}, more)
    assert found.modules == {"0": 0, "1": 1, "pooler": 1, "spare": 0}
    assert found.step.placement[more.index["pooler.weight"]] == 1


def test_notes_say_why_modules_are_not_where_they_were_placed() -> None:
    assert placed(divided.class_token(), X, {"blocks.1": 1}).step.notes == ()
    (note,) = placed(divided.scales(), X, {"blocks.1": 1}).step.notes[:1]
    assert note == "blocks.1 and scale share a device: mul in the model itself reads what both give"
    assert placed(divided.peeks(), X, {"blocks.3": 1}).step.notes == (
        "blocks.0 and blocks.3 share a device: both read blocks.0.weight",
    )
    notes = placed(divided.wrapped(), X, {"inner.layers.1": 1}).step.notes
    assert notes == ("inner stays whole: accelerate wouldn't move inner.position, which is in none of its modules",)
    notes = placed(divided.u_net(), X, {"net.down1": 1}).step.notes
    assert any("share a device: cat in net reads what both give" in note for note in notes)


def test_notes_name_modules_that_share_tensors() -> None:
    (note,) = placed(divided.stream(), X, {"blocks.1": 1}).step.notes
    why = "blocks.1 changes a tensor of first in place, or reads one that is no argument"
    assert note == f"first and blocks.1 share a device: {why}"
    assert placed(divided.adapters(), X, {"adapters.1": 1}).step.notes == (
        "adapters.1 and layers.1 share a device: layers.1 is called in adapters.1",
    )


def test_models_that_change_lists_or_mappings_of_others_are_on_one_device() -> None:
    found = placed(divided.notes(), X, {"blocks.1": 1})
    assert len(set(found.modules.values())) == 1
    why = "blocks.0 is given a list or a mapping that is changed, and accelerate gives it a copy"
    assert found.step.notes[0] == f"blocks.1 and blocks.0 share a device: {why}"
    assert set(placed(divided.states(), X, {"blocks.1": 1}).modules.values()) == {0, 1}


def test_modules_without_tensors_run_where_they_are_called() -> None:
    found = placed(divided.far_norm(), X, {"first.1": 1})
    assert found.modules == {"first.0": 0, "first.1": 1, "first.2": 0, "last": 0, "norm": 0}, "no entry for act"
    graph = found.step.whole.problem.graph
    in_first = [op for op, path in enumerate(graph.modules) if path == "act" and graph.called_in[op] == ("first.1",)]
    assert found.step.placement[in_first].tolist() == [1]


@pytest.mark.parametrize("make", [divided.activations_in_place, divided.grandchildren])
def test_modules_that_share_nothing_stay_apart(make: Callable[[], nn.Module]) -> None:
    units = module_units(capture_inference(make(), [X]))
    assert len(np.unique(units.joined)) == 5


def test_the_inputs_device_is_the_first_of_the_map() -> None:
    found = placed(divided.class_token(), X, {"blocks.0": 1, "blocks.1": 1, "": 1})
    assert found.main == 1
    assert set(found.modules.values()) == {1}
    found = placed(divided.buffers(), X, {"last": 1})
    assert (found.main, found.modules["last"]) == (0, 0), "it meets a buffer of the model itself"
    assert "last lies on the main device" in found.step.notes[-1]


def test_devices_are_named_as_accelerate_names_them() -> None:
    found = placed(divided.class_token(), X, {"blocks.1": 1})
    assert found.named()["blocks.1"] == 1
    assert found.named(["0", "cpu"])["blocks.1"] == "cpu"
    assert found.named(["0", "cpu"])["token"] == 0
    with pytest.raises(PlacementError, match="the cluster has 2 devices, 1 names are given"):
        found.named(["0"])
    graph = capture_inference(divided.class_token(), [X])
    placement = np.array([not path.startswith("blocks.1") for path in graph.modules], np.int64)
    mixed = device_map(simulate(PlacementProblem(graph, load_cluster("cpu+1xh100")), placement))
    assert mixed.named() == {"blocks.0": 0, "blocks.1": "cpu", "blocks.2": 0, "blocks.3": 0, "token": 0, "position": 0}


def test_weights_that_are_read_outside_of_their_module_can_not_be_offloaded() -> None:
    found = placed(divided.attention(), X, {"1": 1})
    assert found.offload_note(found.named()) == ""
    assert "preload_module_classes=[...]) the class of 1.attend" in found.offload_note(found.named(["0", "cpu"]))
    found = placed(divided.borrowed(), WORDS, {})
    note = "embed is on 'disk', and the model itself reads embed.weight outside of its module, where accelerate doesn't"
    assert found.offload_note(found.named(["disk", "0"])).startswith(note)
    assert placed(divided.tied(), WORDS, {}).step.units.borrowed == {}


def test_every_search_over_whole_modules_finds_what_a_map_can_say() -> None:
    graph = capture_inference(divided.buffers(), [X])
    units, kept = module_units(graph), whole_modules(graph)
    for unit in np.unique(units.where[units.where >= 0]):
        assert len(np.unique(kept.colocation[units.where == unit])) == 1
    assert len(np.unique(units.joined)) == 4, "three blocks, and the last layer with the model's own buffer"
