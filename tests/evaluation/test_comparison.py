import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placeto.errors import PlacerError, PlacetoError
from placeto.evaluation.comparison import PlacerSpec, evaluate, load_rows, parse_spec, save_rows
from placeto.evaluation.summary import mean_curves
from placeto.heuristics import HEURISTICS
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from tests.problem.test_files import held

SPECS = (PlacerSpec("single", "single"), PlacerSpec("random", "random", simulations=5))


def diamond(name: str, time_us: float) -> ComputationGraph:
    ops = [
        {"name": "a", "outputs": [8], "time_us": {"*": time_us}},
        {"name": "b", "inputs": [["a", 0]], "outputs": [8], "time_us": {"*": time_us}},
        {"name": "c", "inputs": [["a", 0]], "outputs": [8], "time_us": {"*": 2 * time_us}},
        {"name": "d", "inputs": [["b", 0], ["c", 0]], "time_us": {"*": time_us}},
    ]
    return ComputationGraph.from_ops(name, ops)


GRAPHS = {"small": diamond("small", 100.0), "large": diamond("large", 900.0)}
CLUSTER = load_cluster("2xv100")


def test_rows_come_in_order_with_the_numbers_of_the_placement() -> None:
    rows = evaluate(GRAPHS, CLUSTER, SPECS, seeds=(0, 1), processes=1)
    order = [(row["graph"], row["placer"], row["seed"]) for row in rows]
    assert order == [(g, p, s) for g in ("small", "large") for p in ("single", "random") for s in (0, 1)]
    assert rows[0]["makespan_us"] == 5 * 100.0 + 4 * 5.0  # V100 overhead of 5 us an op
    assert rows[0]["relative"] == 1.0
    assert rows[0]["lower_bound_us"] == 405.0  # a, c, d in a row and the last one's overhead
    assert all(row["fits"] and row["cluster"] == "2xv100" and row["simulations"] >= 1 for row in rows)


def test_ratios_are_to_the_best_device_that_holds_the_graph() -> None:
    """The same devices with too little memory: there is none such, and the row says so."""
    graphs = {"g": diamond("g", 100.0)}
    sizes = ((10**9, 4), (4, 4))
    made = []
    for large, small in sizes:
        first = replace(CLUSTER.devices[0], memory=small)
        second = replace(CLUSTER.devices[1], memory=large, overhead_us=30.0)
        made += evaluate(graphs, replace(CLUSTER, devices=(first, second)), SPECS[:1], processes=1)
    assert [row["single_fits"] for row in made] == [True, False]
    assert made[0]["makespan_us"] == 5 * 100.0 + 4 * 30.0
    assert made[0]["relative"] == 1.0


def test_each_row_counts_the_grouping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are cached by problem, so rows don't share a problem."""
    problems = []
    single = HEURISTICS["single"]

    def watched(problem, **budget):
        problems.append(problem)
        return single(problem, **budget)

    monkeypatch.setitem(HEURISTICS, "single", watched)
    evaluate({"small": GRAPHS["small"]}, CLUSTER, SPECS[:1], seeds=(0, 1), processes=1)
    assert len({id(problem) for problem in problems}) == 3  # one to warm up


def test_warming_up_is_not_cut_short_by_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    single = HEURISTICS["single"]

    for budget in ({"seconds": 0.01}, {"simulations": 5, "seconds": 0.01}, {"simulations": 9999}, {}):

        def patient(problem, *, simulations=None, seconds=None, seed=0):
            calls.append((problem.graph.name, simulations, seconds))
            return single(problem, simulations=simulations, seconds=seconds, seed=seed)

        monkeypatch.setitem(HEURISTICS, "single", patient)  # another one each time: one is made ready only once
        evaluate({"small": GRAPHS["small"]}, CLUSTER, [PlacerSpec("single", "single", **budget)], processes=1)
    assert calls[::2] == [("tiny", 256, None), ("tiny", 5, None), ("tiny", 256, None), ("tiny", None, None)]
    assert calls[1::2] == [("small", None, 0.01), ("small", 5, 0.01), ("small", 9999, None), ("small", None, None)]


def test_interrupted_runs_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "table.json"
    calls: list[str] = []
    single = HEURISTICS["single"]

    def flaky(problem, *, simulations=None, seconds=None, seed=0):
        calls.append(problem.graph.name)
        if problem.graph.name == "large" and len(calls) < 4:
            raise KeyboardInterrupt
        return single(problem, simulations=simulations, seconds=seconds, seed=seed)

    monkeypatch.setitem(HEURISTICS, "flaky", flaky)
    specs = [PlacerSpec("flaky", "flaky")]
    with pytest.raises(KeyboardInterrupt):
        evaluate(GRAPHS, CLUSTER, specs, out=out, processes=1)
    assert [row["graph"] for row in load_rows(out)] == ["small"]
    rows = evaluate(GRAPHS, CLUSTER, specs, out=out, processes=1)
    assert calls == ["tiny", "small", "large", "large"]  # "tiny" warms the placer up, once in a process
    assert rows == load_rows(out)
    assert evaluate(GRAPHS, CLUSTER, specs, out=out, processes=1) == rows
    assert len(calls) == 4
    assert list(tmp_path.iterdir()) == [out]


def test_rows_of_another_budget_or_graph_are_made_again_and_others_kept(tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    evaluate(GRAPHS, CLUSTER, SPECS, out=out, processes=1)
    evaluate(GRAPHS, CLUSTER, [PlacerSpec("random", "random", simulations=2)], out=out, processes=1)
    rows = load_rows(out)
    assert sorted((row["graph"], row["placer"]) for row in rows) == sorted(
        (g, p) for g in GRAPHS for p in ("single", "random")
    )
    assert {row["budget"]["simulations"] for row in rows if row["placer"] == "random"} == {2}
    changed = GRAPHS | {"small": diamond("small", 50.0)}
    again = evaluate(changed, CLUSTER, SPECS[:1], out=out, processes=1)
    assert again[0]["makespan_us"] == 5 * 50.0 + 4 * 5.0


def test_rows_of_other_code_and_of_another_cluster_of_the_same_name_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.json"
    first = evaluate(GRAPHS, CLUSTER, SPECS, out=out, processes=1)
    assert evaluate(GRAPHS, CLUSTER, SPECS, out=out, processes=1) == first  # with their seconds: none was made again
    evaluate(GRAPHS, load_cluster("4xv100"), SPECS, out=out, processes=1)
    slow = replace(CLUSTER, devices=tuple(replace(device, overhead_us=50.0) for device in CLUSTER.devices))
    again = evaluate(GRAPHS, slow, SPECS, out=out, processes=1)
    assert again[0]["makespan_us"] == 5 * 100.0 + 4 * 50.0
    assert [row for row in load_rows(out) if row["cluster"] == "2xv100"] == again
    assert len([row for row in load_rows(out) if row["cluster"] == "4xv100"]) == 4
    monkeypatch.setattr("placeto.evaluation.comparison.code_version", lambda: "another")
    newer = evaluate(GRAPHS, slow, SPECS, out=out, processes=1)
    assert {row["key"] for row in newer}.isdisjoint(row["key"] for row in again)


def test_processes_give_the_same_rows() -> None:
    here = evaluate(GRAPHS, CLUSTER, SPECS, processes=1)
    there = evaluate(GRAPHS, CLUSTER, SPECS, processes=2)
    for row in [*here, *there]:
        del row["seconds"]
    assert here == there
    assert not multiprocessing.active_children()


def test_history_is_kept_on_demand() -> None:
    rows = evaluate(GRAPHS, CLUSTER, SPECS, processes=1, history=True)
    for row in rows:
        assert row["history"][-1][2] == row["makespan_us"]
    last = np.mean([row["relative"] for row in rows if row["placer"] == "random"])
    assert mean_curves(rows, "simulations")["random"][-1][1] == pytest.approx(last)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("etf", PlacerSpec("etf", "etf", 100, 2.0)),
        ("etf@7", PlacerSpec("etf@7", "etf", 7, None)),
        ("etf@2e3", PlacerSpec("etf@2e3", "etf", 2000, None)),
        ("mine=placeto@pass", PlacerSpec("mine", "placeto", None, None)),
        (" heft ", PlacerSpec("heft", "heft", 100, 2.0)),
    ],
)
def test_specs(text: str, spec: PlacerSpec) -> None:
    assert parse_spec(text, None, 100, 2.0) == spec


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        *((text, PlacerError, "must be NAME, NAME@SIMULATIONS, NAME@pass or LABEL=") for text in ("", "etf@", "@7")),
        (" mine=anneal@pass ", PlacerError, "only learned placers have a pass; write 'mine=anneal'"),
        (f"etf@{2**63}", PlacerError, r"placer 'etf@\d+': the number of simulations must be below 2\^63"),
        ("nonsense", PlacerError, "placers: single"),
        ("gdp", PlacerError, "is learned: give a checkpoint"),
    ],
)
def test_bad_specs(text: str, error: type[ValueError], says: str) -> None:
    with pytest.raises(error, match=says):
        parse_spec(text, None, None, None)


@pytest.mark.parametrize("document", [[], {"format": "other", "rows": []}, {"format": "placeto.evaluation/1"}])
def test_other_files_are_not_overwritten(tmp_path: Path, document: object) -> None:
    out = tmp_path / "mine.json"
    out.write_text(json.dumps(document))
    with pytest.raises(PlacerError, match=r"mine\.json: (not an evaluation file|rows is missing)"):
        evaluate(GRAPHS, CLUSTER, SPECS, out=out, processes=1)
    assert json.loads(out.read_text()) == document


def test_a_ratio_may_be_infinite(tmp_path: Path) -> None:
    row = {**evaluate({"small": GRAPHS["small"]}, CLUSTER, SPECS[:1], processes=1)[0], "relative": float("inf")}
    save_rows([row], tmp_path / "rows.json")
    assert load_rows(tmp_path / "rows.json") == [row]


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (7, r"budget must be an object, not 7"),
        ({"simulations": -1, "seconds": None}, r"budget.simulations must be >= 0"),
        ({"simulations": "many", "seconds": None}, r"budget.simulations must be a number"),
        ({"simulations": 3}, r"budget.seconds is missing"),
        ({"simulations": 3, "seconds": None, "steps": 1}, r"budget.steps is unknown; known: seconds, simulations"),
    ],
)
def test_budgets_of_rows_are_checked(budget: object, says: str, tmp_path: Path) -> None:
    row = evaluate({"small": GRAPHS["small"]}, CLUSTER, SPECS[:1], processes=1)[0]
    save_rows([{**row, "budget": budget}], tmp_path / "rows.json")
    with pytest.raises(PlacerError, match=rf"rows\.json: rows\[0\]\.{says}"):
        load_rows(tmp_path / "rows.json")


def test_two_evaluations_into_one_file_are_refused(tmp_path: Path) -> None:
    """Each would write the rows that were there when it began, and its own: the other's would be lost."""
    path = tmp_path / "table.json"
    with (
        held(path) as process,
        pytest.raises(PlacetoError, match=rf"table\.json: process {process.pid} on .* is writing"),
    ):
        evaluate(GRAPHS, CLUSTER, SPECS, out=path, processes=1)
    assert not path.exists()
    evaluate(GRAPHS, CLUSTER, SPECS, out=path, processes=1)
    assert [file.name for file in tmp_path.iterdir()] == ["table.json"]


def test_modules_stay_whole_where_asked() -> None:
    """Two modules of two ops that need nothing of each other: apart they take half as long as both ops of one do."""
    ops = [{"name": f"{m}{i}", "module": m, "outputs": [8], "time_us": {"*": 100.0}} for m in "ab" for i in range(3)]
    ops[5]["time_us"] = {"*": 500.0}
    graphs = {"two": ComputationGraph.from_ops("two", ops)}
    specs = [PlacerSpec("etf", "etf")]
    (free,) = evaluate(graphs, CLUSTER, specs, processes=1)
    (whole,) = evaluate(graphs, CLUSTER, specs, processes=1, whole_modules=True)
    assert free["makespan_us"] == 525.0  # the longest op, and five others beside it
    assert whole["makespan_us"] == 715.0
