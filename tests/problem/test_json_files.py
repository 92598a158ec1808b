import gzip
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placeto.problem import json_files
from placeto.problem.json_files import read_bytes, read_json, write_json


class OwnError(ValueError):
    """The error of a format."""


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000 + "]" * 100_000,
        "[" * 100_000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        f"[{'9' * 5000}]",
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
    with pytest.raises(OwnError, match=r"bad\.json: (not valid JSON|lists and objects are nested too deep)"):
        read_json(path, OwnError)


def test_keys_that_stand_twice_are_refused(tmp_path: Path) -> None:
    """Of an op with two devices only the second was read."""
    path = tmp_path / "placement.json"
    path.write_text('{"placement": {"a": "gpu:0", "b": "gpu:0", "a": "gpu:1"}}')
    with pytest.raises(OwnError, match=r"placement\.json: not valid JSON: 'a' stands in one object twice"):
        read_json(path, OwnError)


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
    monkeypatch.setattr(json_files, "MOST_BYTES", 10)
    (tmp_path / "a.json").write_text("[1, 2, 3, 4]")
    with pytest.raises(OwnError, match=r"a\.json: more than 10 bytes, the most"):
        read_bytes(tmp_path / "a.json", OwnError)
