"""Writes the JSON Schema of each file format into docs/schemas: ``python -m docs.schemas``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from placeto.evaluation import comparison
from placeto.formats import placement, plan
from placeto.problem.checks import adapter, record_of
from placeto.problem.cluster import cluster, cluster_files
from placeto.problem.costs import efficiency, profiled
from placeto.problem.graph import graph, graph_files, op_records

FOLDER = Path(__file__).with_name("schemas")
RECORDS = {
    graph.FORMAT: graph_files.GraphRecord,
    cluster.FORMAT: cluster_files.ClusterRecord,
    placement.FORMAT: record_of(placement.PlacementFile),
    placement.PLANS[0]: record_of(plan.PlanFile),
    comparison.FORMAT: comparison.EvaluationRecord,
    profiled.FORMAT: profiled.CostsRecord,
    efficiency.FORMAT: efficiency.EfficiencyRecord,
}
ITEMS = {  # the items of a list that are checked by themselves: format -> the list's name and the record of an item
    graph.FORMAT: ("ops", op_records.OpRecord),
    comparison.FORMAT: ("rows", comparison.RowRecord),
}


def schema(form: str) -> dict[str, Any]:
    """The JSON Schema of the files of a format."""
    made = adapter(RECORDS[form]).json_schema()
    made["properties"] = {"format": {"const": form}} | made["properties"]
    made["required"] = ["format", *made.get("required", ())]
    if form in ITEMS:
        name, record = ITEMS[form]
        item = adapter(record).json_schema()
        made["$defs"] = made.get("$defs", {}) | item.pop("$defs", {}) | {item["title"]: item}
        made["properties"][name]["items"] = {"$ref": f"#/$defs/{item['title']}"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | made


def text(form: str) -> str:
    """The schema as it is written."""
    return json.dumps(schema(form), indent=1) + "\n"


def path(form: str) -> Path:
    """The file of a format's schema, such as graph-1.json."""
    return FOLDER / f"{form.removeprefix('placeto.').replace('/', '-')}.json"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for form in RECORDS:
        path(form).write_text(text(form))
