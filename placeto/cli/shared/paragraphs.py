"""Help texts as paragraphs, so that ``--help`` doesn't show the line breaks of the source."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructTypeInfo

Help = str | Callable[[], str | None] | None


def paragraphs(text: str) -> str:
    r"""Return a text with one line for each paragraph and each item of a list, and a blank line before each paragraph.

    >>> paragraphs("how many to try,\n    at least\n    1\n\n    more is better")
    'how many to try, at least 1\n\nmore is better'
    >>> paragraphs("what to write\n\n- dot: modules,\n  by device\n- html: a page")
    'what to write\n- dot: modules, by device\n- html: a page'
    """
    parts = re.split(r"\n\n|\n(?=- )", inspect.cleandoc(text))
    return "\n\n".join(" ".join(part.split()) for part in parts if part.strip()).replace("\n\n- ", "\n- ")


def in_paragraphs() -> ConstructorRegistry:
    """Return a registry for tyro, under which the help of all fields of dataclasses is in paragraphs.

    By itself, tyro keeps the line breaks of docstrings of attributes.
    """
    registry, inside = ConstructorRegistry(), list[StructTypeInfo]()

    @registry.struct_rule
    def joined(info: StructTypeInfo) -> StructConstructorSpec | None:
        if info in inside:  # tyro applies all rules again, this one included
            return None
        inside.append(info)
        try:
            spec = ConstructorRegistry.get_struct_spec(info)
        finally:
            inside.pop()
        if not isinstance(spec, StructConstructorSpec):
            return None
        return replace(spec, fields=tuple(replace(of, helptext=partial(_of_field, of.helptext)) for of in spec.fields))

    return registry


def _of_field(given: Help) -> str | None:
    text = given() if callable(given) else given
    return None if text is None else paragraphs(text)
