import json
from pathlib import Path

import pytest

from experiments.golden import RECORD, Golden, compare, main, save
from experiments.golden_cells import GROUPS, Cells

RECORDED: Cells = {f"plans/{name}": {"us": 100.0, "bytes": 8, "fits": True} for name in "abcdefgh"}


def changed(**numbers: float | str) -> tuple[list, list[str]]:
    """What is listed, and the reasons to fail, if the first cell has these numbers."""
    lines, listed, wrong = compare(RECORDED | {"plans/a": {"us": 100.0, "bytes": 8, "fits": True} | numbers}, RECORDED)
    assert [line[:3] for line in lines] == [["plans", quantity, "8"] for quantity in ("us", "bytes", "fits")]
    return [line[1] for line in listed], wrong


def test_numbers_are_equal_up_to_rounding() -> None:
    assert changed(us=100.0 * (1 + 1e-10)) == ([], [])
    assert changed(us=100.0 * (1 + 1e-8)) == (["us"], [])


def test_a_number_may_differ_by_one_and_a_half_per_cent_and_the_mean_by_a_fifth_of_one() -> None:
    assert changed(us=101.4) == (["us"], [])
    assert changed(us=98.0)[1] == ["plans/a: us differs by -2.00 %", "plans: us differs by -0.25 % in the mean"]
    everywhere: Cells = {cell: {"us": 100.3} for cell in RECORDED}
    assert compare(everywhere, {cell: {"us": 100.0} for cell in RECORDED})[2] == [
        "plans: us differs by +0.30 % in the mean"
    ]
    assert len(changed(fits=False)[1]) == 2, "a plan that fits no more fails"


def test_texts_that_differ_are_listed() -> None:
    refused: Cells = {"torch/a": {"refused": "it is tied"}}
    other: Cells = {"torch/a": {"refused": "it is too long"}}
    runs: Cells = {"torch/a": {"us": 5.0}}
    assert compare(other, refused)[1:] == ([["torch/a", "refused", "it is too long", "it is tied", ""]], [])
    assert compare(runs, refused)[2] == []
    assert compare(refused, runs)[2] == ["torch/a: there is no us any more"]


def test_a_cell_that_is_on_one_side_only_fails() -> None:
    some = {cell: RECORDED[cell] for cell in ("plans/b", "plans/a")}
    assert compare(some, RECORDED)[2] == ["6 cells are missing; the first is plans/c"]
    assert compare(RECORDED, some)[2] == ["6 cells have no record: see --record; the first is plans/c"]


def test_the_record_has_the_groups_in_their_order_and_is_written_the_same(tmp_path: Path) -> None:
    kept: Cells = json.loads(RECORD.read_text())
    groups = ["/".join(cell.split("/")[:2]) for cell in kept]
    assert tuple(dict.fromkeys(groups)) == GROUPS
    save(kept, tmp_path / "golden.json")
    assert (tmp_path / "golden.json").read_text() == RECORD.read_text()


@pytest.mark.slow
def test_it_fails_if_a_cell_differs_and_records_only_what_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: Cells = json.loads(RECORD.read_text())
    name, left = "pipeline_steps/1f1b/1 stages x 8", "pipeline_steps/1f1b/2 stages x 4"
    wrong = {cell: {"us": 1.0} if cell in (name, left) else numbers for cell, numbers in kept.items()}
    file = tmp_path / "golden.json"
    save(wrong, file)
    config = Golden(cells=(name,), file=file, workers=1)
    assert main(config) == 1
    assert f"{name}: us differs by " in capsys.readouterr().out
    assert main(Golden(record=True, cells=(name,), file=file, workers=1)) == 0
    assert json.loads(file.read_text()) == kept | {left: {"us": 1.0}}
    assert main(config) == 0
