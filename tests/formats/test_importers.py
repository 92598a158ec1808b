"""What holds for graphs of all other programs: their files are recognised however they are stored, or refused."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from placeto.errors import GraphError
from placeto.formats.importers import IMPORTERS, find_importer
from placeto.placers import resolve_graph
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import load_graph, save_graph
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from tests.command_line import SHARED
from tests.formats.test_dnn_partitioning import SAMPLE, changed, edge, node
from tests.formats.test_doppler import SAMPLE as ARCS
from tests.formats.test_pipedream import SAMPLE as LAYERS
from tests.formats.test_pipedream import layer
from tests.formats.test_stg import COSTLY, PLAIN
from tests.growth import assert_in_proportion

FILES = {
    "pipedream": ("tiny.graph.txt", LAYERS),
    "dnn-partitioning": ("tiny.json", [json.dumps(SAMPLE)]),
    "doppler": ("tiny_6nodes.txt", ARCS),
    "stg": ("tiny.stg", COSTLY),
}
"""A file's name and its lines, for each importer."""


@pytest.mark.parametrize("kind", FILES)
def test_files_are_recognised_however_they_are_stored(kind: str, tmp_path: Path) -> None:
    """With the mark of some editors before it, and lines that end as on Windows; compressed; as our own format."""
    (name, lines), importer = FILES[kind], IMPORTERS[kind]
    (tmp_path / name).write_text("\n".join(lines))
    graph, marked = importer.load(tmp_path / name), ("\ufeff" + "\r\n".join(lines)).encode()
    for ending, data in (("", marked), (".gz", gzip.compress(marked))):
        path = tmp_path / f"{name}{ending}"
        path.write_bytes(data)
        assert find_importer(path) is importer
        shown, found = resolve_graph(str(path))
        assert (shown, found.name, found.hash) == (str(path), graph.name, graph.hash)
    save_graph(graph, tmp_path / "copy.json.gz")
    assert find_importer(tmp_path / "copy.json.gz") is None
    assert resolve_graph(str(tmp_path / "copy.json.gz"))[1].hash == load_graph(tmp_path / "copy.json.gz").hash


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("graph.txt", b"", "pipedream"),  # as upstream calls them
        ("graph_copy.txt", "\n".join(LAYERS).encode(), "pipedream"),
        ("graph_copy.txt", b"a -- b\n", None),
        ("other.txt.gz", gzip.compress("\n".join(LAYERS).encode()), "pipedream"),
        ("other.txt.gz", b"\x1f\x8b damaged", None),
        ("tiny.txt", "\n".join(ARCS).encode(), "doppler"),
        ("tiny.txt", b"6 apples\n0, 1\n", None),
        ("broken.json.gz", b"no gzip", None),
        ("bert24_inference_expert.json", b'{"nodes": {}}', None),  # a split of an expert
    ],
)
def test_the_beginning_of_a_file_says_whose_it_is(name: str, content: bytes, kind: str | None, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert find_importer(tmp_path / name) is (IMPORTERS[kind] if kind else None)
    assert find_importer(tmp_path / "missing.txt") is None


def workload(**changes: object) -> list[str]:
    return [json.dumps(changed(**changes))]


HEAD, ODD = LAYERS[0], "line 5: must be computing and communicating time with a comma between"
BAD: dict[str, list[tuple[list[str], str]]] = {
    "pipedream": [
        ([], "no layer"),
        (["node1 -- node2"], "line 1: edge to or from 'node1'"),
        (["x" * 600_000 + " -- y"], "line 1: edge to or from 'xxx"),
        ([HEAD, "what is this"], "line 2: neither a layer"),
        ([HEAD, HEAD], "line 2: layer 'node10' is there twice"),
        ([HEAD.replace("=0.125", "=fast")], "line 1: layer 'node10': backward_compute_time must be a finite number >="),
        ([HEAD.replace("=40.0", "=[40.0; -1]")], "line 1: layer 'node10': activation_size must be a finite number >="),
        ([HEAD.replace("activation_size", "size")], "line 1: layer 'node10' has no activation_size"),
        ([*LAYERS, "\tnode10 -- node2"], "cycle"),
        ([*LAYERS, "\tnode3 -- node3"], "node3"),
        ([layer("a", "Linear", 1, 2, f"[{'; '.join(['1.0'] * 101)}]", 0)], "at most 100 sizes, not 101"),
        ([layer("a", "Linear", 1, 2, "1e300", 0)], r"ops\['a'\]\.outputs\[0\] must be <= 9223372036854775807"),
        (["\xff\xfe\x00"], "not a text file"),
    ],
    "doppler": [
        (["7", *ARCS[1:]], "line 1: must be how many nodes there are, not '7': 2 inputs and 4 lines of nodes follow"),
        (["six", *ARCS[1:]], "line 1: must be whole numbers with commas between, not 'six'"),
        ([*ARCS[:2], "0, 0, 0", *ARCS[3:]], "line 4: 5 ends of arcs, but line 3 has 3 beginnings"),
        ([*ARCS[:2], "9" * 5000, *ARCS[3:]], "line 3: must be whole numbers"),
        ([*ARCS[:3], "1, 2, 1, 3, 4", *ARCS[4:]], "line 4: an arc's end must be from 0 to 3, not 4"),
        ([*ARCS[:3], "1, 2, 1, 3, 2", *ARCS[4:]], "node2"),
        ([*ARCS[:3], "1, 2, 1, 0, 3", *ARCS[4:]], "cycle"),
        ([*ARCS[:4], "100", *ARCS[5:]], f"{ODD}, not '100'"),
        ([*ARCS[:4], "fast,40", *ARCS[5:]], ODD),
        ([*ARCS[:4], "nan,40", *ARCS[5:]], r"ops\['node0'\]\.time_us\['\*'\] must be a finite number"),
        (["6", "0,\xff"], "not a DOPPLER graph: not a text file"),
        (["6", "0, 1"], "not a DOPPLER graph: it has 2 lines"),
    ],
    "stg": [
        (["# nothing"], "not a task graph: it has no line"),
        (["many"], r"line 1: must be a whole number below 10\^9, not 'many'"),
        (["9" * 5000], "line 1: must be a whole number"),
        (["2", "1 5 0"], "line 1: says 2 tasks, but 1 follow"),
        ([*PLAIN[:7], "6 1 0"], "line 1: says 4 tasks, but 7 follow"),
        (["2", "1 5 0", "1 5 0"], "line 3: task 1 is there twice"),
        (["2", "1 5 0", "2 5"], "line 3: must be a task's number, its time and how many tasks it needs"),
        (["2", "1 5 0", "2 5 2", "1 3"], "line 3: task 2 must name the 2 tasks that it needs"),
        (["2", "1 5 0", "2 5 1 7"], "line 3: task 2 needs task 7, which is not there"),
        (["2", "1 5 0", "2 fast 0"], "line 3: must be a time, not 'fast'"),
        (["2", "1 5 0", "2 5 1 1 -3"], r"ops\['task1'\]\.outputs\[0\] must be >= 0"),
        (["2", "1 5 1 2", "2 5 1 1"], "cycle"),
        (["0"], "the graph is empty"),
    ],
    "dnn-partitioning": [
        (['{"nodes": [], "x": "fpgaLatency", "edges": []}'], "no op"),
        (["[1]"], r"must be an object, not \[1\]"),
        (workload(n_id=3), "node 3: id is there twice"),
        (workload(e_destId=99), "edge 7 -> 99: 99 is the id of no node"),
        (workload(e_sourceId=4, e_destId=7), "cycle"),
        (workload(n_supportedOnFpga="no"), r"nodes\['embed'\]\.supportedOnFpga must be 0, 1, True or False, not 'no'"),
        (workload(n_size=1e300), r"ops\['embed'\]\.param_bytes must be <= 9223372036854775807, not 1000"),
        (workload(n_cpuLatency=1e308), r"ops\['embed'\]\.time_us\.cpu must be a finite number, not inf"),
        (workload(e_size=1e300), "edge 7 -> 3: size must be <= 9223372036854775807, not 1000"),
    ],
}


@pytest.mark.parametrize(("kind", "lines", "message"), [(kind, *case) for kind, cases in BAD.items() for case in cases])
def test_other_files_are_refused_in_one_short_line(kind: str, lines: list[str], message: str, tmp_path: Path) -> None:
    path = tmp_path / FILES[kind][0]
    path.write_bytes("\n".join(lines).encode("latin-1"))
    with pytest.raises(GraphError, match=message) as caught:
        IMPORTERS[kind].load(path)
    assert str(caught.value).count(str(path)) == 1
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def star(count: int) -> str:
    """Edges of all sizes, each of which was looked for among all."""
    edges = [edge(0, i, 1.0, float(i)) for i in range(1, count)]
    return json.dumps({"nodes": [node(i, 1.0, 1.0, 1.0) for i in range(count)], "edges": edges})


def layers_without_work(count: int) -> str:
    """A chain, which each layer walked anew."""
    layers = [layer(f"n{i}", "View", 0, 0, "4", 0) for i in range(count)]
    arcs = [f"\tn{i} -- n{i + 1}" for i in range(count - 1)]
    return "\n".join([*layers, *arcs, layer("home", "Linear", 1, 1, "4", 4), "\thome -- n0"])


def arcs(count: int) -> str:
    ends = ",".join(map(str, range(count - 1))), ",".join(map(str, range(1, count)))
    return "\n".join([str(count + 1), "0,", *ends, *["1,1"] * count])


def tasks(count: int) -> str:
    return "\n".join([str(count), "1 1 0", *(f"{task + 1} 1 1\n{task} 3" for task in range(1, count))])


@pytest.mark.parametrize(
    ("kind", "text"),
    [("dnn-partitioning", star), ("pipedream", layers_without_work), ("doppler", arcs), ("stg", tasks)],
)
def test_time_grows_as_the_file(kind: str, text: Callable[[int], str], tmp_path: Path) -> None:
    path = tmp_path / FILES[kind][0]

    def read(count: int) -> Callable[[], object]:
        path.write_text(text(count))
        return lambda: IMPORTERS[kind].load(path)

    assert_in_proportion(read, 4_000)
    assert IMPORTERS[kind].load(path).num_edges >= 3_999


@pytest.mark.skipif(not SHARED.is_dir(), reason="the data is not here")
@pytest.mark.parametrize(
    ("name", "mode", "ops", "edges", "colours", "work_us", "parameters"),
    [
        ("pipedream/gnmt.graph.txt", "training", 93, 173, 17, 89416, 775063808),
        ("pipedream/resnet50.graph.txt", "training", 353, 561, 158, 443419, 102228128),
        ("pipedream/inception_v3.graph.txt", "training", 651, 1048, 305, 689038, 108645056),
        ("pipedream/nasnetamobile.graph.txt", "training", 1841, 3075, 809, 584284, 34343816),
        ("latency-inputs/LayerGraphs/bert24_inference.json", "inference", 32, 55, 32, 92406, 1594940672),
        ("latency-inputs/LayerGraphs/resnet50_inference.json", "inference", 177, 193, 177, 201450, 102740128),
        ("latency-inputs/OperatorGraphs/bert_l-3_inference.json", "inference", 235, 250, 117, 49352.6, 376750110),
        ("latency-inputs/OperatorGraphs/resnet50_inference.json", "inference", 604, 619, 176, 325132, 51614410),
        ("throughput-inputs/OperatorGraphs/bert_l-3_training.json", "training", 600, 817, 121, 122987.2, 4069900),
        ("doppler/chain_mm_112nodes.txt", "inference", 76, 80, 0, 48002.8e9, 0),
        ("doppler/ffnn_192nodes.txt", "inference", 180, 208, 0, 2267.831861e9, 0),
        ("doppler/transformer_block_215nodes.txt", "inference", 182, 234, 0, 3886.778192e9, 0),
        ("doppler/full_transformer_layer_261nodes.txt", "inference", 229, 284, 0, 3889.76969e9, 0),
    ],
)
def test_published_graphs(
    name: str, mode: str, ops: int, edges: int, colours: int, work_us: float, parameters: int
) -> None:
    """Numbers of PipeDream are without the loading of data, which is no work of the step."""
    _, graph = resolve_graph(str(SHARED / ("dnn-partitioning" if "inputs" in name else "") / name))
    assert (graph.mode, graph.num_ops, graph.num_edges) == (mode, ops, edges)
    assert len(np.unique(graph.colocation[graph.colocation >= 0])) == colours
    assert (np.nansum(graph.time_us["*"]), graph.param_bytes.sum()) == (pytest.approx(work_us, rel=1e-6), parameters)
    problem = PlacementProblem(graph, load_cluster("4xv100"))
    assert group_ops(problem).num_groups <= 200
    assert problem.lower_bound_us <= problem.single_device_us
