"""Mutated files of every format end in the format's own error, or are accepted and survive what follows."""

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.fuzz import FuzzConfig, Reader, Seen, main, outcome, read_apart
from experiments.fuzz_documents import FORMATS, HOW, mutated
from tests.formats.test_apart import judge


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", FORMATS)
def test_a_mutated_file_is_read_or_refused(tmp_path: Path, name: str, how: str) -> None:
    @settings(max_examples=5 if name == "ONNX" else 25, deadline=None)  # each ONNX file starts a process
    @given(seed=st.integers(0, 2**32))
    def check(seed: int) -> None:
        data, suffix = mutated(name, how, random.Random(seed))
        path = tmp_path / f"mutated{suffix}"
        path.write_bytes(data)
        assert outcome(name, path) in ("accepted", "refused")

    check()


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_mutated_is_accepted_before(tmp_path: Path, name: str) -> None:
    for document in FORMATS[name].documents:
        path = tmp_path / f"valid{FORMATS[name].suffix}"
        path.write_bytes(FORMATS[name].encode(document))
        assert outcome(name, path) == "accepted"


@pytest.mark.slow
def test_the_table_counts_every_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(FuzzConfig(documents=150, seed=1, out=tmp_path / "fuzz"))
    table = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(table) == 2 + 2 * len(FORMATS) + 1
    documents, accepted, refused, other, deaths = (int(cell) for cell in table[-1][2:7])
    onnx = [int(line[2]) for line in table if line[0] == "| ONNX"]
    assert (sum(onnx), other, deaths) == (30, 0, 0)
    assert abs(documents - 150) < 12
    assert documents == accepted + refused
    slowest, most = (float(cell.strip(" |")) for cell in table[-1][7:9])
    assert 0 < slowest < 5
    assert 50 < most < 2000  # MB; builds of torch for CUDA need more than those for CPUs


def test_a_death_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.fuzz.judge", judge)
    monkeypatch.setattr("experiments.fuzz.FORMATS", {})
    seen, reader = Seen(Counter()), Reader()
    for name in ("valid", "abort", "foreign", "valid"):
        read_apart(name, tmp_path / "one.json", seen, reader)
    reader.stop()
    assert seen.counts == {"accepted": 2, "else": 2, "deaths": 1}
    assert (seen.peak, seen.line("x", "y")[2:7]) == (3, ["4", "2", "0", "2", "1"])
