"""For the reference of the documentation site: comments beside fields, and examples as code: a griffe extension."""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Docstring, Extension, Object

from docs.field_texts import comment_of


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


def with_fences(text: str) -> str:
    r"""A docstring whose examples are blocks of code.

    >>> with_fences("One.\n\n>>> 1 + 1\n2\n\nMore.")
    'One.\n\n```python\n>>> 1 + 1\n2\n```\n\nMore.'
    """
    return re.sub(r"^( *)(>>> .*(?:\n *\S.*)*)", r"\1```python\n\1\2\n\1```", text, flags=re.MULTILINE)
