from pathlib import Path

import pytest

from experiments.classical import ClassicalConfig, best_known, constructive, external_graphs, main, overview, searches
from placeto.evaluation.comparison import Row
from placeto.heuristics import HEURISTICS

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


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="there is no folder"):
        external_graphs(tmp_path / "none")


def test_bounds_where_nothing_takes_time() -> None:
    idle = row("f:test:0", "p", 1.0) | {"makespan_us": 0.0, "lower_bound_us": 0.0}
    rows = [idle, row("f:test:1", "p", 0.5)]
    assert overview(rows, best_known(rows), "c")[-1][1] == "0.600"  # mean of 1 and .2


def test_every_placer_is_in_the_table_once() -> None:
    specs = searches([5, 10])
    names = [*constructive(), *(spec.placer for spec in specs if spec.simulations == 5)]
    assert sorted([*names, "exact"]) == sorted(HEURISTICS)
    assert [spec.simulations for spec in specs] == sorted(spec.simulations or 0 for spec in specs)


def row(graph: str, placer: str, relative: float, seed: int = 0, fits: bool = True, cluster: str = "c") -> Row:
    times = {"makespan_us": 10 * relative, "relative": relative, "lower_bound_us": 2.0, "fits": fits}
    return {
        "graph": graph,
        "cluster": cluster,
        "placer": placer,
        "seed": seed,
        **times,
        "simulations": 4,
        "seconds": 0.5,
    }


def test_overview_by_hand() -> None:
    rows = [row("f:test:0", "p", 0.4, 0), row("f:test:0", "p", 0.6, 1), row("g:test:0", "p", 0.8, fits=False)]
    rows += [row("f:test:0", "q", 0.7), row("g:test:0", "q", 0.9)]
    rows += [row(r["graph"], r["placer"], 1.0, r["seed"], cluster="d") for r in rows]
    best = best_known(rows)
    assert best["f:test:0", "c"] == 0.4
    assert best["g:test:0", "c"] == 0.9, "the other one doesn't fit"
    head, _, p, q, known, bound = overview(rows, best, "c")
    assert head[:5] == ["placer", "f c", "f d", "g c", "g d"]
    assert p == ["p", "0.500", "1.000", "0.800", "1.000", "0.141", "5/6", "4", "0.500"]
    assert q[:6] == ["q", "0.700", "1.000", "0.900", "1.000", ""]
    assert known[1:5] == ["0.400", "1.000", "0.900", "1.000"]
    assert bound[1:5] == ["0.200", "0.200", "0.200", "0.200"]


def test_one_command_makes_the_tables(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ClassicalConfig(
        out=tmp_path / "out",
        external=folder,
        families=("ptb",),
        split="validation",
        count=2,
        clusters=("2xv100",),
        budgets=(10,),
        seeds=2,
        large_budgets=(20,),
        large_count=1,
        large_cluster="2xv100",
        processes=1,
    )
    main(config)
    text = capsys.readouterr().out
    assert (tmp_path / "out" / "classical.md").read_text() == text[:-1]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    placers = [line[0] for line in lines]
    assert set(constructive()) | {spec.label for spec in searches([10, 20])} <= set(placers)
    means = {line[0]: [float(cell) for cell in line[1:3]] for line in lines if len(line) == 7 and line[1][:1] in "01"}
    assert len(means) == len(constructive()) + len(searches([10])) + 2
    for values in means.values():
        assert all(
            bound <= known <= value
            for bound, known, value in zip(means["lower bound"], means["best known"], values, strict=True)
            if value != bound
        )
    rows = (tmp_path / "out" / "2xv100.json").read_bytes()
    main(config)
    assert capsys.readouterr().out == text, "all rows were there"
    assert (tmp_path / "out" / "2xv100.json").read_bytes() == rows
