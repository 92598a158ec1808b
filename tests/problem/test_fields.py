import gzip
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from placeto.problem import fields
from placeto.problem.fields import (
    MOST_NESTED,
    Check,
    Field,
    check_array,
    choice,
    flag,
    integer,
    items,
    listed,
    mapping,
    number,
    optional,
    quote,
    read_bytes,
    read_fields,
    read_json,
    size,
    text,
    within,
    write_json,
)
from tests.problem.test_files import limited


class OwnError(ValueError):
    """The error of a format."""


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3),
    max_leaves=12,
)
CHECKS: dict[str, Check] = {
    "number": number(),
    "number > 0": number(above=0.0),
    "number or infinite": number(infinite=True),
    "integer": integer(),
    "integer from 1 to 9": integer(1, 9),
    "size": size,
    "flag": flag,
    "text": text,
    "text or null": optional(text),
    "sizes": items(size, "a size"),
    "numbers by name": mapping(number()),
    "choice": choice("a", "b"),
}


@pytest.mark.parametrize("name", CHECKS)
@settings(max_examples=60, deadline=None)
@given(value=anything)
@example(value=10**5000)
@example(value="\ud800")
@example(value={"\ud800": 1})
@example(value=["\x1b[2J" * 1000])
def test_checks_return_or_raise_the_format_s_error_in_one_short_line(name: str, value: Any) -> None:
    try:
        CHECKS[name](value, "field", OwnError)
    except OwnError as refusal:
        message = str(refusal)
        assert "field" in message or "a size" in message
        assert message.isprintable()
        assert len(message) < 200


@pytest.mark.parametrize(
    ("name", "value", "checked"),
    [
        ("number", 3, 3.0),
        ("number", np.float32(0.5), 0.5),
        ("number or infinite", float("inf"), float("inf")),
        ("integer", np.int64(7), 7),
        ("size", 16e9, 16 * 10**9),
        ("size", 2**63 - 1025, 2**63 - 1025),
        ("text or null", None, None),
        ("sizes", (1, 2.0), [1, 2]),
        ("numbers by name", {"a": 1}, {"a": 1.0}),
    ],
)
def test_checks_give_plain_values(name: str, value: Any, checked: Any) -> None:
    found = CHECKS[name](value, "field", OwnError)
    assert found == checked
    assert type(found) is type(checked)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", float("nan")),
        ("number", float("inf")),
        ("number", True),
        ("number", 10**400),
        ("number", "9"),
        ("number > 0", 0),
        ("number or infinite", float("nan")),
        ("integer", 1.0),
        ("integer", 2**63),
        ("integer from 1 to 9", 0),
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
    with pytest.raises(OwnError, match=r"field|a size"):
        CHECKS[name](value, "field", OwnError)


def test_fields_by_a_table() -> None:
    table = {"name": Field(text), "size": Field(size, 7)}
    assert read_fields({"name": "a"}, table, OwnError) == {"name": "a", "size": 7}
    assert read_fields({"name": "a", "more": 1}, table, OwnError, others=True) == {"name": "a", "size": 7}
    for record, message in (
        ({"name": "a", "more": 1}, "unknown field 'more'; known: name, size"),
        ({"size": 1}, "name is missing"),
        ([1], r"must be an object with name, size, not \[1\]"),
        ({"name": "a", "size": -1}, "op 'x': size must be a whole number of bytes"),
    ):
        with pytest.raises(OwnError, match=message), within(OwnError, "file"), within(OwnError, "op", "x"):
            read_fields(record, table, OwnError)


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


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000 + "]" * 100_000,
        "[" * 100_000,
        '{"a":' * (MOST_NESTED + 1) + "1" + "}" * (MOST_NESTED + 1),
        '"' + "\\\\" * 50_000,
        '"\\"' * 30_000,
        '{"a": 1,}',
        "",
        b"\xff\xfe\x00",
        b'"\xed\xa0\x80"',
    ],
)
def test_what_is_no_json_is_refused_by_name(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(OwnError, match=r"bad\.json: (not valid JSON|lists and objects are nested more than 32 deep)"):
        read_json(path, OwnError)


def test_keys_that_stand_twice_are_refused(tmp_path: Path) -> None:
    """Of an op with two devices only the second was read."""
    path = tmp_path / "placement.json"
    path.write_text('{"placement": {"a": "gpu:0", "b": "gpu:0", "a": "gpu:1"}}')
    with pytest.raises(OwnError, match=r"placement\.json: 'a' stands in one object twice"):
        read_json(path, OwnError)


def test_brackets_in_strings_are_not_nesting(tmp_path: Path) -> None:
    path = tmp_path / "good.json"
    document = {
        '"[\\"': "[" * 1000,
        "{\\": ['\\"[['],
        "deep": json.loads("[" * (MOST_NESTED - 1) + "]" * (MOST_NESTED - 1)),
    }
    write_json(document, path)
    assert read_json(path, OwnError) == document


def test_integers_beyond_all_limits_become_floats(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    path.write_text(f"[{'9' * 400}, -{'9' * 5000}, {'1' * 40}, {'1' * 41}]")
    assert read_json(path, OwnError) == [float("inf"), float("-inf"), int("1" * 40), float("1" * 41)]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 200), bit=st.integers(0, 8 * 200))
def test_damaged_gzip_files_are_refused_or_whole(tmp_path: Path, cut: int, bit: int) -> None:
    document = {"ops": [{"name": f"op{i}", "outputs": [i * 37 % 101]} for i in range(40)]}
    path = tmp_path / "damaged.json.gz"
    write_json(document, path)
    data = bytearray(path.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    for damaged in (bytes(data), path.read_bytes()[:cut]):
        path.write_bytes(damaged)
        with suppress(OwnError):
            assert read_json(path, OwnError) == document  # bits of the header, such as the date, don't matter


def test_unpacking_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(129):
            file.write(b" " * 2**20)
    assert path.stat().st_size < 2**20
    with pytest.raises(OwnError, match=r"bomb\.json\.gz: more than 134217728 bytes unpacked, the most that is read"):
        read_json(path, OwnError)


def test_large_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "MOST_BYTES", 10)
    (tmp_path / "a.json").write_text("[1, 2, 3, 4]")
    with pytest.raises(OwnError, match=r"a\.json: more than 10 bytes, the most"):
        read_bytes(tmp_path / "a.json", OwnError)


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_what_can_not_be_written_leaves_the_old_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"kept{suffix}"
    write_json([1], path)
    with limited(1000), pytest.raises(OSError, match="large") as problem:  # as on a full disk
        write_json([os.urandom(50).hex() for _ in range(100)], path)
    assert problem.value.filename == str(path)
    assert read_json(path, OwnError) == [1]
    assert list(tmp_path.iterdir()) == [path]
