"""Writes docs/settings.md from the dataclasses of a training run: ``python -m docs.settings_page``."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from docs.field_texts import texts
from placeto.problem.checks import adapter, record_of
from placeto.training.config import RunConfig, default_config

PAGE = Path(__file__).with_name("settings.md")
PLACERS = "placeto", "placeto-paper", "seq2seq", "grouper", "gdp", "constructive", "mlp"
_SHOWN = 1e6  # limits below it are shown
_HEAD = """# Settings of a training run

These are the settings of `placeto train`, and of the dataclasses in `placeto/training/config.py` that a Python program
gives to `train`. On the command line, `--learning.graphs 8` sets `learning.graphs`. `placeto train --placer NAME
--help` lists the settings of one placer.

- **True or false.** `--policy.feedback` means true, and `--policy.no-feedback` means false.
- **None** is written `None`, as in `--env.tolerance None`.
- **Lists** are written with spaces, as in `--search.scales 1 0.5`.

If you give a setting of `learning` that has no effect beside the other settings, `placeto train` prints a note.

The column *range* says which numbers are accepted; a value outside is refused. Limits beyond a million are not shown.
The page is made of the dataclasses: `python -m docs.settings_page` writes it.
"""


def page() -> str:
    """The whole page."""
    sections = [_HEAD, "## All placers\n", _table(RunConfig, RunConfig("OUT"), "", required={"out"})]
    described: dict[type, tuple[str, Any]] = {}  # kind -> the first placer that has it, and its settings
    for placer in PLACERS:
        config = default_config(placer, "OUT")
        sections.append(f"## {placer}\n")
        for part in (field.name for field in fields(config) if is_dataclass(getattr(config, field.name))):
            settings = getattr(config, part)
            kind = type(settings)
            if kind in described:
                first, before = described[kind]
                others = [f"`{part}.{name}` is `{_shown(value)}`" for name, value in _changed(before, settings)]
                sections.append(f"`{part}`: as for `{first}`{', but ' + ' and '.join(others) if others else ''}.\n")
                continue
            described[kind] = placer, settings
            sections += [
                f"`{part}`: {' '.join((inspect.getdoc(kind) or '').split())}\n",
                _table(kind, settings, f"{part}."),
            ]
    return "\n".join(sections)


def _table(kind: type, settings: Any, prefix: str, required: typing.Collection[str] = ()) -> str:
    """A row for each setting: name, type, range, default, effect."""
    effects, hints = texts(kind), get_type_hints(kind)
    schemas = adapter(record_of(kind)).json_schema()["properties"]
    lines = ["| setting | type | range | default | effect |", "|---|---|---|---|---|"]
    for field in fields(settings):
        name, value = f"{prefix}{field.name}", getattr(settings, field.name)
        span = _range(schemas[field.name])
        default = "must be given" if field.name in required else f"`{_shown(value)}`"
        effect = effects[field.name].replace("|", "\\|")
        lines.append(f"| `{name}` | {_type(hints[field.name])} | {span} | {default} | {effect} |")
    return "\n".join([*lines, ""])


def _type(hint: Any) -> str:
    """A type in words."""
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    if get_origin(hint) in (UnionType, typing.Union):
        return " or ".join(map(_type, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"list of {_type(get_args(hint)[0])}s"
    return {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "`None`"}[hint]


def _changed(before: Any, after: Any) -> Iterator[tuple[str, Any]]:
    """Fields of a dataclass that differ, with their values after."""
    for field in fields(after):
        if getattr(before, field.name) != (value := getattr(after, field.name)):
            yield field.name, value


def _range(schema: typing.Mapping[str, Any]) -> str:
    """The range of a JSON schema, of its items or of its first alternative; empty if it has no limit worth showing."""
    inner = schema.get("items", schema.get("anyOf", [schema])[0])
    low, high = inner.get("minimum", -math.inf), inner.get("maximum", math.inf)
    if high >= _SHOWN:
        return "" if low < -_SHOWN else f"at least {low:g}"
    return f"at most {high:g}" if low < -_SHOWN else f"{low:g} to {high:g}"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    return str(value) if isinstance(value, str) else f"{value}"


if __name__ == "__main__":
    PAGE.write_text(page())
