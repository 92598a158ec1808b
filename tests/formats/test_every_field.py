"""Each field of each document is checked: other values are refused in a sentence that names the field."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.fuzz_documents import FORMATS
from placeto.evaluation.comparison import load_rows
from placeto.formats import dnn_partitioning
from placeto.formats.placement import load_placement
from placeto.formats.plan import load_plan
from placeto.problem.cluster import load_cluster
from placeto.problem.costs import load_costs
from placeto.problem.graph import load_graph
from tests.formats.torch_toys import captured, chain
from tests.test_pages import FORMATS as PAGE
from tests.test_pages import examples

READERS: dict[str, Any] = {
    "graph": load_graph,
    "cluster": load_cluster,
    "placement": load_placement,
    "plan": load_plan,
    "evaluation": load_rows,
    "costs": load_costs,
    "efficiency": load_costs,
    "": dnn_partitioning.load,
}
DEVICES = [{"name": name, "flops": {"float32": 1e12}, "memory_bandwidth": 1e12, "memory": 1e9} for name in "ab"]
SHARED = {"name": "card", "bandwidth": 1e9, "latency_us": 3.0, "from": ["a"], "to": ["b"]}
DOCUMENTS: list[dict[str, Any]] = [
    *(json.loads(text) for text in examples("json", PAGE)),
    *(document for found in FORMATS.values() if found.suffix == ".json" for document in found.documents),
    {"format": "placeto.graph/1", "ops": captured(chain(1), 2).to_ops()},
    {
        "format": "placeto.cluster/1",
        "devices": DEVICES,
        "bandwidth": 1e9,
        "shared_links": [SHARED],
        "price_per_hour": 2,
    },
]
UNREAD = re.compile(r"(bandwidth|latency_us)\.(0\.0|1\.1)|rows\.\d\.budget.*|maxFPGAs")
"""Links of a device to itself, and what other programs write for themselves."""
OPEN = ("rows", "budget", "nodes", "edges", "entries")
"""Records that may have more fields."""


def fields(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each field and of each item of a list."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from fields(value[key], (*path, key))


def one_of_each(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Of fields that differ in the numbers of items, one."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in fields(document):
        if not UNREAD.fullmatch(name := ".".join(map(str, path))):
            found.setdefault(re.sub(r"\d+", "", name), path)
    return list(found.values())


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(document)
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return document


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.get("format", "dnn-partitioning"))
def test_other_values_and_fields_are_refused_by_name(document: dict[str, Any], tmp_path: Path) -> None:
    path, kind = tmp_path / "document.json", document.get("format", "").removeprefix("placeto.").partition("/")[0]

    def refusal(wrong: Any) -> str:
        path.write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: ") as refused:
            READERS[kind](path)
        assert str(refused.value).isprintable()
        return str(refused.value).removeprefix(f"{path}: ")

    for field in one_of_each(document):
        if (kind, field) == ("plan", ("format",)):  # another format is no plan, and no error
            continue
        named = [part for part in field if isinstance(part, str)][-1]
        for other in ([{"no": 1}], float("nan"), -1):
            if other != -1 or named not in ("colorClass", "slope"):
                said = refusal(changed(document, field, other))
                assert named in said or said.startswith("edge "), (field, other, said)
        value = document
        for key in field:
            value = value[key]
        if isinstance(value, dict) and named not in OPEN:
            assert "more" in refusal(changed(document, (*field, "more"), {"no": 1})), field
