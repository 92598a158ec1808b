"""What the fields of a class mean: the string below a field, or else the comment beside it."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from itertools import pairwise
from typing import Any


def texts(kind: Any) -> dict[str, str]:
    """Each field of a dataclass or record, and of those that it inherits from, with its text.

    >>> from placeto.problem.cluster.topology import Link
    >>> texts(Link)
    {'bandwidth': 'Bytes/s, in one direction', 'latency_us': 'Microseconds, in one direction'}
    """
    found: dict[str, str] = {}
    for base in getattr(kind, "__orig_bases__", kind.__bases__):  # a record has its bases there
        if hasattr(base, "__annotations__"):
            found |= texts(base)
    source = textwrap.dedent(inspect.getsource(kind))
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    for field, below in pairwise([*tree.body, ast.Pass()]):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = comment_of(source.splitlines(), field.lineno - 1)
            if isinstance(below, ast.Expr):
                text = str(ast.literal_eval(below.value))
            found[field.target.id] = " ".join(text.split())
    return found


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
