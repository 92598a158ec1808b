import json
from pathlib import Path

import numpy as np
import pytest

from placeto.formats.chrome_trace import chrome_trace, save_chrome_trace
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule, simulate
from tests.toys import alike, linked


def schedule_of(link: str = "egress", transfers: str = "unicast", name: str = "fork") -> Schedule:
    """One op on device 0 feeds two others on devices 1 and 2: two transfers of 40 bytes at 10 bytes/us."""
    ops = [
        {"name": "a", "type": "mm", "outputs": [40], "module": "encoder", "time_us": {"*": 3.0}, "param_bytes": 8},
        {"name": "b", "type": "add", "inputs": [["a", 0]], "module": "decoder", "time_us": {"*": 2.0}},
        {"name": "c", "type": "mul", "inputs": [["a", 0]], "outputs": [1, 2], "time_us": {"*": 1.0}},
    ]
    cluster = linked(alike(*[10**9] * 3), 10.0, "toy", transfers=transfers, link=link)
    return simulate(PlacementProblem(ComputationGraph.from_ops(name, ops), cluster), np.array([0, 1, 2]))


def test_events_of_the_fork_by_hand() -> None:
    trace = chrome_trace(schedule_of())
    events = {(e["cat"], e["name"], e["tid"], e["ts"]): e for e in trace["traceEvents"] if e["ph"] == "X"}
    times = {key: event["dur"] for key, event in events.items()}
    assert times == {
        ("op", "a", 0, 0.0): 3.0,
        ("transfer", "a", 0, 3.0): 4.0,
        ("op", "b", 1, 7.0): 2.0,
        ("transfer", "a", 0, 7.0): 4.0,  # one link per sender: the second copy waits
        ("op", "c", 2, 11.0): 1.0,
    }
    a = events["op", "a", 0, 0.0]["args"]
    assert (a["type"], a["module"], a["output_bytes"], a["parameter_bytes"]) == ("mm", "encoder", 40, 8)
    assert [events["op", op, d, t]["args"]["output_bytes"] for op, d, t in (("b", 1, 7.0), ("c", 2, 11.0))] == [0, 3]
    assert events["transfer", "a", 0, 7.0]["args"] == {"bytes": 40, "from": "gpu:0", "to": "gpu:2"}


def names_of(trace: dict, kind: str, process: int) -> list[str]:
    events = [e for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == kind and e["pid"] == process]
    return [event["args"]["name"] for event in events]


@pytest.mark.parametrize(
    ("link", "transfers", "rows"),
    [
        ("egress", "unicast", ["gpu:0 sends"]),
        ("egress", "broadcast", ["gpu:0 sends"]),
        ("pair", "unicast", ["gpu:0 to gpu:1", "gpu:0 to gpu:2"]),
    ],
)
def test_a_row_for_each_device_and_link(link: str, transfers: str, rows: list[str]) -> None:
    trace = chrome_trace(schedule_of(link, transfers))
    assert names_of(trace, "thread_name", 0) == ["gpu:0 (toy)", "gpu:1 (toy)", "gpu:2 (toy)"]
    assert names_of(trace, "thread_name", 1) == rows
    assert names_of(trace, "process_name", 0) + names_of(trace, "process_name", 1) == ["devices", "links"]


def test_the_file_is_strict_json(tmp_path: Path) -> None:
    save_chrome_trace(schedule_of(), tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text(), parse_constant=pytest.fail)
    assert trace["otherData"] == {"graph": "fork", "cluster": "toy"}
