import json
from pathlib import Path
from typing import Any

import pytest

from placeto.errors import PlacementError
from placeto.formats.placement import PlacementFile, load_placement
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph

GRAPH = ComputationGraph.from_ops("pair", [{"name": "a", "outputs": [4]}, {"name": "b", "inputs": [["a", 0]]}])
CLUSTER = load_cluster("2xp100")
DOCUMENT: dict[str, Any] = {
    "format": "placeto.placement/1",
    "graph_hash": GRAPH.hash,
    "cluster": "2xp100",
    "makespan_us": 7,
    "fits": True,
    "peak_memory": {"gpu:0": 4.0},
    "placer": "etf",
    "simulations": 3,
    "seconds": 0.5,
    "placement": {"b": "gpu:1", "a": "gpu:0"},
}


def test_all_but_the_placement_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    path.write_text(json.dumps(DOCUMENT))
    assert load_placement(path).devices(GRAPH, CLUSTER).tolist() == [0, 1]
    path.write_text(json.dumps({key: DOCUMENT[key] for key in ("format", "placement")} | {"seconds": None}))
    assert load_placement(path) == PlacementFile(DOCUMENT["placement"])


@pytest.mark.parametrize(
    ("placement", "graph_hash", "message"),
    [
        ({"a": "gpu:0"}, None, "op 'b' of graph 'pair' has no device in the placement"),
        ({"a": "gpu:0", "b": "gpu:0", "c": "gpu:0"}, None, "op 'c' of the placement is not in graph 'pair'"),
        ({"a": "gpu:0", "b": "\x1b[2J"}, None, r"op 'b': device '\\x1b\[2J' is not in cluster '2xp100', which has"),
        ({"a": "gpu:0", "b": "gpu:0"}, "0" * 64, "another graph: its hash begins with '000000000000', and with '"),
        ({"a": "gpu:0", "b": "gpu:0"}, "0" * 64, "for 'pair'; both have the same ops, so that sizes differ"),
        ({"a": "gpu:0", "b": "gpu:0", "c": "gpu:0"}, "0" * 64, "; that one has an op 'c', which isn't in this one"),
        ({"a": "gpu:0"}, "0" * 64, "; this one has an op 'b', which isn't in that one"),
    ],
)
def test_placements_of_something_else(placement: dict[str, str], graph_hash: str | None, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        PlacementFile(placement, graph_hash).devices(GRAPH, CLUSTER)
