import pytest

from experiments.headline_placers import AS_SHIPPED, COLOCRL, FRESH, GROUPER, ON_IT, PLACERS, POLICY, UNSEEN
from experiments.headline_tables import by_place, claims, distributions, makespans, unseen, until
from experiments.trajectories import Cell, Trajectory


def run(placer: str, *points: tuple[int, float, float], seed: int = 0, graph: str = "nmt:test:0") -> Trajectory:
    return Trajectory(Cell(graph, "4xv100", placer, seed, 400), points, 400, 40.0, "abc")


RUNS = by_place(
    [
        run("expert", (1, 0.1, 200.0)),
        run(COLOCRL[0], (100, 5.0, 150.0), (300, 15.0, 100.0)),
        run(COLOCRL[1], (200, 2.0, 120.0)),
        run(GROUPER[0], (10, 1.0, 160.0)),
        run(POLICY, (1, 0.1, 300.0), (5, 0.5, 90.0)),
        run(POLICY, (1, 0.1, 300.0), (10, 0.7, 101.0), seed=1),
        run(POLICY, (1, 0.1, 300.0), (20, 0.9, 102.0), seed=2),
        run(AS_SHIPPED, (3, 0.1, 80.0)),
        run("ETF", (1, 0.1, 240.0), graph="wavenet:test:0"),
        run("expert", (1, 0.1, 120.0), graph="wavenet:test:0"),
    ]
)
OWN = RUNS["nmt:test:0", "4xv100"]


def line(table: object, placer: str) -> list[str]:
    (found,) = [list(line) for line in table if line[0] == placer]  # type: ignore[attr-defined]
    return found


def test_makespans_by_hand() -> None:
    table = makespans(RUNS, "4xv100")
    assert table[0] == ["placer", "nmt:test:0", "wavenet:test:0", "geometric mean"]
    assert line(table, POLICY) == [POLICY, "0.488", "", ""]
    assert line(table, "expert") == ["expert", "1.000", "1.000", "1.000"]
    assert line(table, "ETF") == ["ETF", "", "2.000", ""]
    assert len(table) == 1 + len(PLACERS)


def test_until_by_hand() -> None:
    table = until(RUNS, "4xv100", COLOCRL)
    assert line(table, POLICY)[1:] == ["10; 0.7 s", "", "0 of 1"]
    assert line(table, GROUPER[0])[1:] == ["never", "", "1 of 1"]
    assert not [line for line in table if line[0] == "ETF"]


def test_claims_by_hand() -> None:
    """The policy needs 10 placements for ColocRL's 300, and 5 to 20 and at most 0.9 s for the grouper's 10 in 1 s."""
    table = claims(RUNS)
    policy = line(table, POLICY)
    assert policy[1:3] == ["30 (30; 0 of 1)", "1 (1; 0 of 1)"]
    assert policy[5] == "1.43 (1.43; 0 of 1)"
    assert policy[6] == "51.2 %"
    assert line(table, GROUPER[0])[1] == "0.75 (0.75; 1 of 1)", "it counts with its 400 placements"
    assert line(table, AS_SHIPPED)[4] == "50.0 %"
    assert line(table, "ETF")[3] == "-100.0 %", "wavenet is one of the six"


def test_unseen_by_hand() -> None:
    names = {"one device": 200.0, "expert": 100.0, UNSEEN: 60.0, ON_IT: 50.0, FRESH: 80.0}
    runs = by_place([run(name, (1, 0.1, us), graph="ptb:test:1") for name, us in names.items()])
    assert unseen(runs)[1] == ["ptb", "1", "0.600", "0.500", "0.800", "1.200"]
    assert distributions(runs) == {"ptb": {UNSEEN: [pytest.approx(0.3)], ON_IT: [0.25], FRESH: [0.4]}}
