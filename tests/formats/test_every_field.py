"""Each field of each document counts: it is checked, kept by a file that is written again, and part of the hash."""

import copy
import dataclasses
import json
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.fuzz_documents import FORMATS
from placeto.evaluation.comparison import load_rows, save_rows
from placeto.formats.graphs_of_others import dnn_partitioning
from placeto.formats.placement import load_placement, save_placement
from placeto.formats.plan import load_plan, save_plan
from placeto.problem.cluster import load_cluster, save_cluster
from placeto.problem.costs import load_costs
from placeto.problem.costs.profiled import save_profiled
from placeto.problem.graph import load_graph, save_graph
from tests.formats.torch_toys import captured, chain
from tests.test_pages import FORMATS as PAGE
from tests.test_pages import examples

READERS: dict[str, Callable[[Any], Any]] = {
    "graph": load_graph,
    "cluster": load_cluster,
    "placement": load_placement,
    "plan": load_plan,
    "evaluation": load_rows,
    "costs": load_costs,
    "efficiency": load_costs,
    "": dnn_partitioning.load,
}
WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "graph": save_graph,
    "cluster": save_cluster,
    "placement": save_placement,
    "plan": save_plan,
    "evaluation": save_rows,
    "costs": save_profiled,
}
DEVICES = [{"name": name, "flops": {"float32": 1e12}, "memory_bandwidth": 1e12, "memory": 1e9} for name in "ab"]
SHARED = {"name": "card", "bandwidth": 1e9, "latency_us": 3.0, "from": ["a"], "to": ["b"]}
NAMES = {"called_in": ["act"], "shared_with": ["0"], "tensors": ["table"]}
"""What a graph knows of names, beside what it knows of the toy's ops."""
DOCUMENTS: list[dict[str, Any]] = [
    *(json.loads(text) for text in examples("json", PAGE)),
    *(
        document
        for name, found in FORMATS.items()
        if found.suffix == ".json" and name != "config"  # which is transformers'
        for document in found.documents
    ),
    {"format": "placeto.graph/1", "ops": [op | NAMES for op in captured(chain(1), 2).to_ops()]},
    {
        "format": "placeto.cluster/1",
        "devices": DEVICES,
        "bandwidth": 1e9,
        "shared_links": [SHARED],
        "price_per_hour": 2,
    },
]
UNREAD = re.compile(r"(bandwidth|latency_us)\.(0\.0|1\.1)|maxFPGAs")
"""Links of a device to itself, and what other programs write for themselves."""
OPEN = ("rows", "nodes", "edges", "entries")
"""Records that may have more fields."""


def fields(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each field and of each item of a list."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from fields(value[key], (*path, key))


def one_of_each(*documents: dict[str, Any]) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
    """Of fields of one format that differ in the numbers of items, one, with a document that has it."""
    found: dict[tuple[str, str], tuple[dict[str, Any], tuple[Any, ...]]] = {}
    for document in documents:
        for path in fields(document):
            if not UNREAD.fullmatch(name := ".".join(map(str, path))):
                found.setdefault((kind_of(document), re.sub(r"\d+", "", name)), (document, path))
    return list(found.values())


def value_at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(document)
    value_at(document, path[:-1])[path[-1]] = value
    return document


def kind_of(document: dict[str, Any]) -> str:
    return str(document.get("format", "")).removeprefix("placeto.").partition("/")[0]


def read(document: dict[str, Any], path: Path) -> Any:
    path.write_text(json.dumps(document))
    return READERS[kind_of(document)](path)


@pytest.mark.parametrize("kind", READERS, ids=lambda kind: kind or "dnn-partitioning")
def test_other_values_and_fields_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "document.json"

    def refusal(wrong: Any) -> str:
        path.write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: ") as refused:
            READERS[kind](path)
        assert str(refused.value).isprintable()
        return str(refused.value).removeprefix(f"{path}: ")

    for document, field in one_of_each(*(document for document in DOCUMENTS if kind_of(document) == kind)):
        if (kind, field) == ("plan", ("format",)):  # another format is no plan, and no error
            continue
        named = [part for part in field if isinstance(part, str)][-1]
        for other in ([{"no": 1}], float("nan"), -1):
            if other != -1 or named not in ("colorClass", "slope"):
                said = refusal(changed(document, field, other))
                assert named in said or said.startswith("edge "), (field, other, said)
        if isinstance(value_at(document, field), dict) and named not in OPEN:
            assert "more" in refusal(changed(document, (*field, "more"), {"no": 1})), field


def contents(value: Any) -> dict[str, Any]:
    """The fields of what was read but the path it was read from, to be compared."""
    names = [field.name for field in dataclasses.fields(value)] if is_dataclass(value) else []
    return {name: getattr(value, name) for name in names if name != "path"} or {"rows": value}


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
@pytest.mark.parametrize("document", [one for one in DOCUMENTS if kind_of(one) in WRITERS], ids=kind_of)
def test_what_is_read_is_written_and_pickled_as_it_was(document: dict[str, Any], ending: str, tmp_path: Path) -> None:
    kind, paths = kind_of(document), [tmp_path / f"{number}{ending}" for number in range(2)]
    found = read(document, tmp_path / "document.json")
    for path in paths:
        WRITERS[kind](found, path)
        again = READERS[kind](path)
        np.testing.assert_equal(contents(again), contents(found))
        np.testing.assert_equal(contents(pickle.loads(pickle.dumps(again))), contents(found))
        assert all(not item.flags.writeable for item in contents(again).values() if isinstance(item, np.ndarray))
    assert paths[0].read_bytes() == paths[1].read_bytes()


OTHER = {"dtype": "bfloat16", "kernel": "grouped", "pass": "backward", "transfers": "broadcast", "link": "pair"}
OTHER |= dict.fromkeys(("type", "kind", "colocation", "module", "signature", "reads", *NAMES), "other")
UNHASHED = {"price_per_hour", "signature", "reads", *NAMES}


@pytest.mark.parametrize("document", [one for one in DOCUMENTS if kind_of(one) in ("graph", "cluster")], ids=kind_of)
def test_the_hash_sees_every_field(document: dict[str, Any], tmp_path: Path) -> None:
    plain, seen = read(document, tmp_path / "document.json").hash, 0
    for _, field in one_of_each(document):
        value, named = value_at(document, field), [part for part in field if isinstance(part, str)][-1]
        if isinstance(value, float):
            other: Any = value * 0.5 + 1e-3
        elif type(value) is int:
            other = value + 1
        else:
            other = OTHER.get(named, value) if isinstance(value, str) else value
        if other != value:
            with suppress(ValueError):  # fields that go together, such as sizes and what reads them
                found = read(changed(document, field, other), tmp_path / "other.json").hash
                assert (found != plain) is (named not in UNHASHED), field
                seen += 1
    assert seen >= 5
