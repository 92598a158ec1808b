"""How documents of JSON and of lines are damaged for `experiments.fuzz`, in structure and in their bytes."""

from __future__ import annotations

import random
from typing import Any

RAW = ["[" * 100_000 + "]" * 100_000, '{"a":' * 40 + "1" + "}" * 40, "9" * 400, "9" * 5000, "1e400", "-1e400", "NaN"]
"""JSON that can't be made of Python's values, or only by limits of its own."""
_NUMBERS = None, True, False, 0, -1, 1, 2, 3, 0.5, -0.0, 1e-300, 5e-324, 1e15, 1e18, 1e25, 1e308
_LARGE = 10**30, 2**31, 2**53, 2**62, 2**63, -(2**63), 2**64
_WORDS = "", "a", "0", "1e3", "1.5", "nan", "true", "null", "k80", "*", "gpu:0", "training", "loss", "cpu", "0F0"
_NAMES = (
    *(
        "²",
        "\x1b[31m",
        "\ud800",
        "\n",
        "é",
        "a\r\nb",
        "\u202ea",
        "a\x00b",
        "\x9b31m",
        "\u2028",
        "\ufeff",
        "\x7f",
        "\t",
        " ",
    ),
    *("x" * 100_000, "x." * 10_000, "." * 500, "../../x", "/dev/null", "a/b", "-rf", "--help", "%s%n", "{0}", "\\"),
    *('$(id)\'"""', "'; id; '", "</script>", "__class__", "gpu:0..gpu:1", "$\\frac{$", "\U0001f680", "=1+1"),
)
_HOLDERS: tuple[Any, ...] = (
    [],
    {},
    [[]],
    ["a"],
    [0],
    ["a", 0],
    ["a", 10**30],
    [["a", 0]],
    {"a": 1},
    {"k80": 3.0},
    [[0, 1e9], [1e9, 0]],
)
EVIL: list[Any] = [*_NUMBERS, *_LARGE, *_WORDS, *_NAMES, *_HOLDERS, *(f"@raw{i}@" for i in range(len(RAW)))]
"""Values that break readers."""
TOKENS = (
    *("²", "-1", "nan", "inf", "1e400", "9" * 30_000, "", " -- ", "[1.0; 2.0]", "1_0", "node2", "0", "Input"),
    *("\x1b[31m", "\u202e", "\x00", "-", "X", "NV18", "NV²", "SYS", "GPU0", "GPU99"),
)
"""What parts of a line are replaced by."""


def change_value(document: Any, rng: random.Random) -> None:
    """Change one place of a JSON document."""
    places = list(places_of(document))
    if not places:
        return
    holder, key = rng.choice(places)
    kind = rng.randrange(9)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[rng.choice(("extra", "name", "time_us", *_NAMES))] = holder.pop(key)
    elif kind == 1:
        holder.insert(key, copied(holder[key]))
    elif kind == 2:
        other, where = rng.choice(places)
        holder[key], other[where] = copied(other[where]), copied(holder[key])
    elif kind in (3, 4) and isinstance(holder[key], int | float):
        holder[key] = holder[key] * rng.choice((-1, 0.5, 1e-9, 1e9, 10**20))
    elif kind == 5:
        holder[key] = _of_another_type(holder[key], rng)
    else:
        holder[key] = copied(rng.choice(EVIL))


def _of_another_type(value: Any, rng: random.Random) -> Any:
    """The same value in a type that JSON, or Python, keeps apart from its own."""
    wrapped = [value], {"value": value}
    if isinstance(value, dict):
        return rng.choice((list(value), list(value.values()), list(map(list, value.items())), *wrapped))
    if isinstance(value, list):
        return rng.choice((dict(zip(map(str, range(len(value))), value, strict=True)), *value[:1], *wrapped))
    if isinstance(value, str):
        return rng.choice((list(value[:9]), len(value), value.upper(), f" {value}", *wrapped))
    if isinstance(value, int | float):
        return rng.choice((str(value), bool(value), value + 0.5, float(value), *wrapped))
    return rng.choice((*wrapped, 0, ""))


def copied(value: Any) -> Any:
    """A copy of lists and objects; not of tensors, some kinds of which torch can't copy."""
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return [copied(part) for part in value] if isinstance(value, list) else value


def places_of(value: Any) -> Any:
    """Every (list or object, key) in a document."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from places_of(value[key])


def change_lines(lines: list[str], rng: random.Random) -> None:
    """Change one line of a profile or of another file of lines."""
    if not lines:
        return
    line = rng.randrange(len(lines))
    kind = rng.randrange(6)
    if kind == 0:
        del lines[line]
    elif kind == 1:
        lines.insert(rng.randrange(len(lines)), lines[line])
    elif kind == 2:
        lines[line] = lines[line].replace(rng.choice((" -- ", "=", "node", "(", ", ")), rng.choice(TOKENS), 1)
    else:
        parts = lines[line].replace("=", " = ").split(" ")
        parts[rng.randrange(len(parts))] = rng.choice(TOKENS)
        lines[line] = " ".join(parts).replace(" = ", "=")


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip a bit, or cut, double, or insert a few bytes."""
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((1, 4, 40)))
    kind = rng.randrange(5)
    if kind == 0 and start < len(data):
        return data[:start] + bytes([data[start] ^ (1 << rng.randrange(8))]) + data[start + 1 :]
    if kind == 1:
        return data[:start] + data[end:]
    if kind == 2:
        return data[:end] + data[start:]
    if kind == 3:
        return data[:start]
    return (
        data[:start]
        + rng.choice((b"[", b"]", b"{", b'"', b"\\", b"\x00", b"\xff", b"9", b"-", b"e", b"\n"))
        + data[start:]
    )
