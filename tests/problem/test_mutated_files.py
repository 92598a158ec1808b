"""Mutated files of every format end in the format's own error, or are accepted and survive what follows."""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.fuzz import FORMATS, HOW, FuzzConfig, main, mutated, outcome, written


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_mutated_file_is_read_or_refused(tmp_path: Path, name: str, how: str, seed: int) -> None:
    data, suffix = mutated(name, how, random.Random(seed))
    path = tmp_path / f"mutated{suffix}"
    path.write_bytes(data)
    assert outcome(name, path) in ("accepted", "refused")


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_mutated_is_accepted_before(tmp_path: Path, name: str) -> None:
    for document in FORMATS[name].documents:
        path = tmp_path / f"valid{FORMATS[name].suffix}"
        path.write_text(written(name, document))
        assert outcome(name, path) == "accepted"


def test_the_table_counts_every_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(FuzzConfig(documents=126, seed=1, out=tmp_path / "fuzz"))
    table = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(table) == 2 + 18 + 1
    documents, accepted, refused, other = (int(cell) for cell in table[-1][2:6])
    assert (documents, other) == (126, 0)
    assert documents == accepted + refused
