"""Writes the JSON Schema of each file format into docs/schemas, and the tables of docs/file-formats.md.

The command is ``python -m docs.schemas``. Both are made from the types by which files are checked, and from the texts
of their fields. A text may end in "Default: " and what holds if the field is left out.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from docs.field_texts import texts
from placeto.evaluation import comparison
from placeto.formats import placement
from placeto.planning import machines
from placeto.problem.checks import adapter, record_of
from placeto.problem.cluster import cluster, cluster_files, topology
from placeto.problem.costs import efficiency, profiled
from placeto.problem.graph import graph, graph_files, op_records
from placeto.problem.step import plan_files

FOLDER = Path(__file__).with_name("schemas")
PAGE = Path(__file__).with_name("file-formats.md")
RECORDS = {
    graph.FORMAT: graph_files.GraphRecord,
    cluster.FORMAT: cluster_files.ClusterRecord,
    placement.FORMAT: record_of(placement.PlacementFile),
    placement.PLANS[0]: record_of(placement.PlanFile),
    comparison.FORMAT: comparison.EvaluationRecord,
    machines.FORMAT: machines.MachinesRecord,
    profiled.FORMAT: profiled.CostsRecord,
    efficiency.FORMAT: efficiency.EfficiencyRecord,
}
ITEMS = {  # the items of a list that are checked by themselves: format -> the list's name and the record of an item
    graph.FORMAT: ("ops", op_records.OpRecord),
    comparison.FORMAT: ("rows", comparison.RowRecord),
}
_CLASSES: tuple[Any, ...] = (  # those whose source has texts; other records have them in their types
    graph_files.GraphRecord,
    *(cluster_files.ClusterRecord, cluster.Device, topology.Topology, topology.Link),
    *(
        placement.PlacementFile,
        placement.PlanFile,
        plan_files.PlanRecord,
        plan_files.StageRecord,
        plan_files.ReplicaRecord,
    ),
    *(comparison.EvaluationRecord, comparison.RowRecord, comparison.Budget),
    *(machines.MachinesRecord, machines.MachineRecord),
    *(profiled.CostsRecord, profiled.OpCost, profiled.Fit, profiled.StepRecord),
    *(efficiency.EfficiencyRecord, efficiency.EntryRecord),
)
_REGION = re.compile(r"(<!-- fields of (\w+) of (\S+) -->\n\n)(?:\|.*\n)*\n?")
_NAMES = {"integer": "whole number", "string": "text", "boolean": "true or false"}
_COUNTED = "integer", "number", "object", "string"  # types whose names have a plural
_LARGE = 10**6  # limits beyond it are not shown


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
    kinds = {kind.__name__: kind for kind in _CLASSES}
    for part in (made, *made.get("$defs", {}).values()):
        if part["title"] in kinds:
            _describe(part, kinds[part["title"]])
        for field in part["properties"].values():
            if " Default: " in field.get("description", ""):
                field.pop("default", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | made


def text(form: str) -> str:
    """The schema as it is written."""
    return json.dumps(schema(form), indent=1) + "\n"


def path(form: str) -> Path:
    """The file of a format's schema, such as graph-1.json."""
    return FOLDER / f"{form.removeprefix('placeto.').replace('/', '-')}.json"


def page() -> str:
    """The page of file formats, with its tables made anew."""

    def table(found: re.Match[str]) -> str:
        whole = schema(found[3])
        record = whole if whole["title"] == found[2] else whole["$defs"][found[2]]
        return found[1] + _table(record) + "\n"

    return _REGION.sub(table, PAGE.read_text())


def _describe(record: Any, kind: Any) -> None:
    """Add the texts of a class to the schema of its objects, and its defaults."""
    for name, meaning in texts(kind).items():
        record["properties"][name].setdefault("description", meaning)
    for field in fields(kind) if is_dataclass(kind) else ():
        if field.default not in (MISSING, None):
            record["properties"][field.name].setdefault("default", field.default)


def _table(record: Any) -> str:
    """A row for each field of an object, required ones first: name, values, meaning, what holds if it is left out."""
    lines = ["| field | value | meaning | if left out |", "|---|---|---|---|"]
    required = record["required"]
    for name in sorted(record["properties"], key=lambda name: name not in required):
        field = record["properties"][name]
        meaning, _, default = field.get("description", "").partition(" Default: ")
        default = default or (f"`{json.dumps(field['default'])}`" if "default" in field else "none")
        meaning = meaning[:1].upper() + meaning[1:].removesuffix(".")
        lines.append(f"| `{name}` | {_values(field)} | {meaning} | {'-' if name in required else default} |")
    return "\n".join(lines) + "\n"


def _values(schema: Any, plural: str = "") -> str:
    """The values that a field may have, in words; with "s" several of them."""
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " or ".join(_values(part, plural) for part in schema["anyOf"])
    kind = schema.get("type", "object" if "$ref" in schema else "")
    if kind == "array" and "prefixItems" in schema:
        return f"[{', '.join(map(_values, schema['prefixItems']))}]"
    if kind == "array":
        return f"list{plural} of {_values(schema['items'], 's')}"
    if isinstance(inner := schema.get("additionalProperties"), dict):
        return f"object{plural} of {_values(inner, 's')}"
    return _NAMES.get(kind, kind) + (plural if kind in _COUNTED else "") + _limits(schema)


def _limits(schema: Any) -> str:
    low, high = schema.get("minimum"), schema.get("maximum", _LARGE)
    above = " > 0" if "exclusiveMinimum" in schema else f" >= {low:g}" if low else ""
    return above if high >= _LARGE else f" from {low:g} to {high:g}"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for form in RECORDS:
        path(form).write_text(text(form))
    PAGE.write_text(page())
