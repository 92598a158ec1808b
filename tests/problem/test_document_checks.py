from typing import Annotated, Any, Required

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from placeto.problem.checks import (
    Count,
    Flag,
    Index,
    Number,
    OneOf,
    OpenRecord,
    Positive,
    Record,
    Size,
    Text,
    check_array,
    checked,
)
from placeto.problem.messages import listed, quote, within


class OwnError(ValueError):
    """The error of a format."""


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3),
    max_leaves=12,
)
KINDS: dict[str, Any] = {
    "number": Number,
    "number > 0": Positive,
    "integer": Index,
    "integer from 1": Count,
    "size": Size,
    "flag": Flag,
    "text": Text,
    "text or null": Text | None,
    "sizes": list[Size],
    "numbers by name": dict[Text, Number],
    "choice": Annotated[str, OneOf(("a", "b"))],
}


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25, deadline=None)
@given(value=anything)
@example(value=10**4000)
@example(value="\ud800")
@example(value={"\ud800": 1})
@example(value=["\x1b[2J" * 1000])
@example(value={"x" * 1000: {}})
def test_checks_return_or_raise_the_format_s_error_in_one_line(name: str, value: Any) -> None:
    try:
        checked(value, KINDS[name], OwnError, "field")
    except OwnError as refusal:
        message = str(refusal)
        assert message.startswith("field")
        assert message.isprintable()
        assert len(message) < 800


@pytest.mark.parametrize(
    ("name", "value", "plain"),
    [
        ("number", 3, 3.0),
        ("integer", 7, 7),
        ("size", 16e9, 16 * 10**9),
        ("size", 2**63 - 1025, 2**63 - 1025),
        ("text or null", None, None),
        ("sizes", (1, 2.0), [1, 2]),
        ("numbers by name", {"a": 1}, {"a": 1.0}),
    ],
)
def test_checks_give_plain_values(name: str, value: Any, plain: Any) -> None:
    found = checked(value, KINDS[name], OwnError)
    assert found == plain
    assert type(found) is type(plain)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", float("nan")),
        ("number", float("inf")),
        ("number", True),
        ("number", 10**400),
        ("number", "9"),
        ("number > 0", 0),
        ("integer", 1.0),
        ("integer", 2**63),
        ("integer from 1", 0),
        ("size", 0.5),
        ("size", 2.0**63),
        ("size", 10**25),
        ("size", True),
        ("flag", 1),
        ("text", "\udfff"),
        ("sizes", "12"),
        ("numbers by name", {1: 2}),
        ("numbers by name", ["a"]),
        ("numbers by name", {"\ud800": 1}),
        ("choice", ["a"]),
    ],
)
def test_checks_refuse(name: str, value: Any) -> None:
    with pytest.raises(OwnError, match=r"^field"):
        checked(value, KINDS[name], OwnError, "field")


class Part(Record, total=False):
    name: Required[Text]
    size: Size


class Whole(OpenRecord):
    parts: list[Part]


def test_records() -> None:
    assert checked({"parts": ({"name": "a"},), "more": 1}, Whole, OwnError) == {"parts": [{"name": "a"}]}
    for record, message in (
        ({"parts": [{"name": "a", "more": 1}]}, r"parts\['a'\].more is unknown; known: name, size"),
        ({"parts": [{"size": 1}]}, r"parts\[0\].name is missing"),
        ({"parts": [{"name": "a", "x" * 99: 1}]}, r"parts\['a'\]\['x{24,60}\.\.\.x*'\] is unknown"),
        ({"parts": [[1]]}, r"parts\[0\] must be an object, not \[1\]"),
        (
            {"parts": [{"size": -1}, {}]},  # of a list the first fault is told
            r"op 'x': parts\[0\].name is missing; parts\[0\].size must be >= 0, not -1$",
        ),
    ):
        with pytest.raises(OwnError, match=message), within(OwnError, "file"), within(OwnError, "op", "x"):
            checked(record, Whole, OwnError)


def test_arrays() -> None:
    check_array(np.zeros(3), "a", np.float64, 3, OwnError)
    for value in (np.zeros(2), np.zeros(3, np.int64), np.zeros((3, 1)), [0.0] * 3, None, np.zeros(3, ">f8")):
        with pytest.raises(OwnError, match="a must be an array of 3 float64, not "):
            check_array(value, "a", np.float64, 3, OwnError)


@given(value=anything)
def test_quotes_are_short_and_printable(value: Any) -> None:
    assert len(quote(value)) <= 60
    assert quote(value).isprintable()


def test_long_lists_of_names_are_cut() -> None:
    assert listed(["a", "\x1b"]) == "a, \\x1b"
    assert listed([f"gpu:{i}" for i in range(4096)]).endswith("gpu:23 and 4072 more")
