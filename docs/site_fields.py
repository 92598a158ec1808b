"""For the reference of the documentation site: comments beside fields, and examples as code: a griffe extension."""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Docstring, Extension, Object


class Comments(Extension):
    """Takes the comment beside a field, or above it, as its docstring, where it has none: its shape and unit."""

    def on_attribute_instance(self, *, attr: Attribute, **kwargs: Any) -> None:
        """Called for each attribute that griffe has read."""
        file, of_class = attr.filepath, attr.parent is not None and attr.parent.is_class
        if attr.docstring is not None or not of_class or attr.lineno is None or isinstance(file, list):
            return
        if comment := comment_of(attr.lines_collection[file], attr.lineno - 1):
            attr.docstring = Docstring(comment, parent=attr)

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called for each object that griffe has read."""
        if obj.docstring is not None:
            obj.docstring.value = with_fences(obj.docstring.value)


def comment_of(lines: list[str], number: int) -> str:
    """The comment at the end of a line, or else the lines of comments above it; "" if there is none.

    >>> comment_of(["# of", "# a", "x: int = None  # type: ignore[assignment]", "y: int  # (N,)"], 2)
    'Of a'
    >>> comment_of(["x: int = None  # type: ignore[assignment]  # (N,) of b"], 0)
    '(N,) of b'
    """
    code = re.sub(r"# type: ignore\[\S+\]", "", lines[number])
    comment = code.partition("  # ")[2].strip(" #")
    above: list[str] = []
    while not comment and number > 0 and lines[number - 1].strip().startswith("# "):
        number -= 1
        above.insert(0, lines[number].strip()[2:])
    comment = comment or " ".join(above)
    return comment[:1].upper() + comment[1:]


def with_fences(text: str) -> str:
    r"""A docstring whose examples are blocks of code.

    >>> with_fences("One.\n\n>>> 1 + 1\n2\n\nMore.")
    'One.\n\n```python\n>>> 1 + 1\n2\n```\n\nMore.'
    """
    return re.sub(r"^( *)(>>> .*(?:\n *\S.*)*)", r"\1```python\n\1\2\n\1```", text, flags=re.MULTILINE)
