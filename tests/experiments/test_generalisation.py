from pathlib import Path

import pytest

from experiments.generalisation import (
    COMPARISONS,
    Comparison,
    GeneralisationConfig,
    Graphs,
    external_graphs,
    external_table,
    gains,
    main,
    training_runs,
)
from experiments.rows import CHEAP, problem_of
from experiments.runs import PRETRAINED
from placeto.evaluation.comparison import Row, load_rows
from placeto.training.config import LearningConfig, TrainConfig

LAYER = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=4.0, parameter_size=8.0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A profile with two branches, one that is a chain, and a file that is no graph."""
    layers = [f"node{i} -- Linear(i) -- {LAYER}" for i in (1, 2, 3, 4)]
    (tmp_path / "deep").mkdir()
    fork = [*layers, "\tnode1 -- node2", "\tnode1 -- node3", "\tnode2 -- node4", "\tnode3 -- node4"]
    (tmp_path / "deep" / "fork.graph.txt").write_text("\n".join(fork) + "\n")
    chain = [*layers, *(f"\tnode{i} -- node{i + 1}" for i in (1, 2, 3))]
    (tmp_path / "chain.graph.txt").write_text("\n".join(chain) + "\n")
    (tmp_path / "README.txt").write_text("no graph")
    return tmp_path


def test_external_graphs_are_those_with_something_to_gain(folder: Path) -> None:
    graphs, others = external_graphs(folder)
    assert list(graphs) == ["external:deep/fork.graph.txt"]
    assert others == ["chain.graph.txt: one device is within 0.3% of the lower bound"]


def test_external_graphs_without_any_time_are_left_out(folder: Path) -> None:
    profile = (folder / "chain.graph.txt").read_text()
    for time in ("1.0", "2.0"):
        profile = profile.replace(f"compute_time={time}", "compute_time=0.0")
    (folder / "idle.graph.txt").write_text(profile)
    graphs, others = external_graphs(folder)
    assert len(graphs) == 1
    assert others[1:] == ["idle.graph.txt: its ops take no time"]


def row(placer: str, graph: str, makespan_us: float, seed: int = 0) -> Row:
    return {"placer": placer, "graph": graph, "makespan_us": makespan_us, "seed": seed}


def test_gains_are_means_over_graphs_for_each_seed() -> None:
    rows = [row(CHEAP, "a", 10.0), row(CHEAP, "b", 100.0)]
    rows += [row("x", "a", 8.0), row("x", "b", 100.0), row("x", "a", 9.0, 1), row("x", "b", 110.0, 1)]
    assert gains(rows, "x") == pytest.approx([10.0, 0.0])


def test_trained_and_placed_graphs_are_disjoint_and_halves_are_halves() -> None:
    small, large = (Graphs(("ptb",), half=half) for half in ("small", "large"))
    both = small.names("test") + large.names("test")
    assert sorted(both) == sorted(Graphs(("ptb",)).names("test"))
    sizes = [[problem_of(name, "4xv100").num_ops for name in half.names("test")] for half in (small, large)]
    assert max(sizes[0]) <= min(sizes[1])
    assert Graphs(("ptb", "nmt")).names("test", 2) == ("ptb:test:0", "ptb:test:1", "nmt:test:0", "nmt:test:1")
    for run in training_runs(GeneralisationConfig(seeds=1)).values():
        assert {name.split(":")[1] for name in run.graphs} == {"train"}
        assert {name.split(":")[1] for name in run.validation} == {"validation"}


def test_a_run_on_several_clusters_has_each_graph_on_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = Comparison({"two": Graphs(("ptb",), ("2xv100", "4xv100"))}, {})
    monkeypatch.setitem(COMPARISONS, "small", comparison)
    (run,) = training_runs(GeneralisationConfig(tmp_path, ("small",), seeds=1)).values()
    train, validation = run.problems()
    assert len(train) == 2 * len(run.graphs)
    assert {problem.num_devices for problem in train.values()} == {2, 4}
    assert len(validation) == 2 * len(run.validation)


@pytest.mark.slow
def test_one_command_makes_tables_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.generalisation.split_size", lambda family, split: 2)
    ptb, eight = Graphs(("ptb",)), Graphs(("ptb",), ("8xv100",))
    monkeypatch.setitem(COMPARISONS, "small", Comparison({"ptb": ptb}, {"ptb": ptb, "eight": eight}))

    def short(out: str, *, minutes: float, seed: int) -> TrainConfig:
        learning = LearningConfig(graphs=1, supervised_moves=2, labels=2, annealed=0.0)
        return TrainConfig(out, iterations=2, seed=seed, learning=learning)

    monkeypatch.setattr("experiments.generalisation.TrainConfig", short)
    config = GeneralisationConfig(tmp_path, ("small",), seeds=2, count=1, processes=1)
    main(config)
    out = capsys.readouterr().out
    assert out.strip() == (tmp_path / "generalisation.md").read_text().strip()
    assert "| trained on | ptb, % | eight, % |" in out
    assert f"| {PRETRAINED} | " in out
    assert (tmp_path / "generalisation.png").stat().st_size > 1000
    rows = load_rows(tmp_path / "rows.json")
    assert len(rows) == 2 * (2 + 1 + 1)
    cheap = {(row["graph"], row["cluster"]): row["makespan_us"] for row in rows if row["placer"] == CHEAP}
    assert all(row["makespan_us"] <= cheap[row["graph"], row["cluster"]] for row in rows)


def test_graphs_of_other_programs_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is trained, and there is nothing to draw."""
    folder, out = tmp_path / "graphs" / "pipedream", tmp_path / "out"
    folder.mkdir(parents=True)
    times = "forward_compute_time=10.0, backward_compute_time=20.0, activation_size=4e3, parameter_size=8"
    lines = [f"node{k} -- Linear -- {times}" for k in range(6)]
    lines += [f"\tnode0 -- node{k}" for k in range(1, 5)] + [f"\tnode{k} -- node5" for k in range(1, 5)]
    (folder / "fork.graph.txt").write_text("\n".join(lines) + "\n")
    main(GeneralisationConfig(out, (), external=tmp_path / "graphs", processes=1))
    printed = capsys.readouterr().out
    assert printed.strip() == (out / "generalisation.md").read_text().strip()
    assert "| 2xv100 |" in printed
    assert "multilevel@1000" in printed
    assert not (out / "generalisation.png").exists()
    with pytest.raises(SystemExit, match="give a comparison, or a folder of graphs of other programs"):
        main(GeneralisationConfig(out, ()))
    with pytest.raises(SystemExit, match="there is no folder"):
        main(GeneralisationConfig(tmp_path / "new", external=tmp_path / "none"))
    assert not (tmp_path / "new").exists(), "nothing was trained before"


def test_an_unknown_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no comparison is called 'x'; comparisons: families, devices, sizes"):
        main(GeneralisationConfig(tmp_path, ("x",)))


def test_external_graphs_stand_beside_their_best_heuristic_that_fits() -> None:
    relative = {"metis": 0.9, "etf": 0.8, "heft": 0.7, "expert": 1.2, "single": 1.0, "x": 0.5, "y": 0.4}
    rows = [
        {"graph": graph, "cluster": "c", "placer": placer, "relative": value, "fits": fits}
        for graph, too_large in (("g", ("heft", "y")), ("h", tuple(relative)))
        for placer, value in relative.items()
        for fits in [placer not in too_large]
    ]
    head, _, line, other = external_table(rows)
    assert head[2:] == ["best of metis, etf, heft, expert, single", "x", "y"]
    assert line == ["g", "c", "0.8000", "0.5000", "doesn't fit"]
    assert other == ["h", "c", *["doesn't fit"] * 3]
