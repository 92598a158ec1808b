"""The dynamic program for stages, against all possible plans and against PipeDream's published profiles."""

import itertools
import json
import re
from collections.abc import Iterator

import numpy as np
import pytest

from placeto.heuristics.pipelines.stage_program import MOST_DEVICES, stage_programs
from tests.command_line import SHARED

Program = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]


def slowest_us(
    program: Program,
    work: np.ndarray,
    parameters: np.ndarray,
    crossing: np.ndarray,
    speed: np.ndarray,
    bandwidth: np.ndarray,
) -> float:
    """Time of the slowest stage or border of a plan."""
    devices, borders = program
    times = [crossing[b - 1] / bandwidth[own[0] - 1, own[0]] for b, own in zip(borders, devices[1:], strict=True)]
    for own, (first, last) in zip(devices, itertools.pairwise([0, *borders, len(work)]), strict=True):
        time, replicas = work[first:last].sum() / speed[list(own)].sum(), len(own)
        if replicas > 1:
            slowest_link = min(bandwidth[a, b] for a, b in itertools.permutations(own, 2))
            time += 2 * (replicas - 1) / replicas * parameters[first:last].sum() / slowest_link
        times.append(time)
    return float(max(times))


def every_program(layers: int, devices: int, stages: int) -> Iterator[Program]:
    """All plans of so many stages."""
    for cuts in itertools.combinations(range(1, devices), stages - 1):
        own = tuple(tuple(range(*ends)) for ends in itertools.pairwise([0, *cuts, devices]))
        for borders in itertools.combinations(range(1, layers), stages - 1):
            yield own, borders


@pytest.mark.parametrize("seed", range(5))
def test_no_plan_has_a_faster_slowest_stage(seed: int) -> None:
    random = np.random.default_rng(seed)
    work, parameters, crossing = random.uniform(1, 9, 6), random.uniform(0, 50, 6), random.uniform(0, 20, 5)
    speed = random.choice([0.5, 1.0], 4)
    link = random.uniform(5, 20, (4, 4))
    costs = work, parameters, crossing, speed, np.minimum(link, link.T)
    found = stage_programs(*costs, replicas=4)
    assert [len(devices) for devices, _ in found] == [2, 3, 4]
    for program in found:
        best = min(slowest_us(each, *costs) for each in every_program(6, 4, len(program[0])))
        assert slowest_us(program, *costs) == pytest.approx(best)


def test_no_stage_has_more_replicas_than_asked_for() -> None:
    plans = stage_programs(np.ones(6), np.zeros(6), np.zeros(5), np.ones(4), np.ones((4, 4)), replicas=2)
    assert [max(map(len, devices)) for devices, _ in plans] == [2, 2, 1]


def test_layers_of_many_weights_get_one_replica() -> None:
    work, weights = np.array([30.0, 30.0, 30.0, 30.0]), np.array([0.0, 0.0, 0.0, 1e6])
    plans = stage_programs(work, weights, np.ones(3), np.ones(4), np.full((4, 4), 1e3), replicas=4)
    assert plans[0] == (((0, 1, 2), (3,)), (3,))


def test_of_many_devices_nothing_is_sought() -> None:
    count = MOST_DEVICES + 1
    assert stage_programs(np.ones(3), np.ones(3), np.ones(2), np.ones(count), np.ones((count, count)), replicas=9) == []


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs profiles that are not in the repository")
def test_vgg_gets_the_plan_that_pipedream_prints() -> None:
    (plan,) = (
        row
        for row in json.loads((SHARED / "parallel" / "golden.json").read_text())["pipedream_plans"]["rows"]
        if row["graph"] == "vgg16"
    )
    cost = re.compile(r"^node(\d+) -- .*forward_compute_time=(.*), backward_compute_time=(.*), activation_size=(.*), "
                      r"parameter_size=(.*)$")  # fmt: skip
    lines = (SHARED / "pipedream" / "vgg16.graph.txt").read_text().splitlines()
    rows = sorted([float(value) for value in found.groups()] for line in lines if (found := cost.match(line)))
    _, forward, backward, activation, parameters = np.array(rows).T
    work, bytes_per_us = 1e3 * (forward + backward), 1e4
    program = stage_programs(work, parameters, 2 * activation[:-1], np.ones(4), np.full((4, 4), bytes_per_us), 4)[0]
    first, last = (int(number) for number in re.findall(r"(\d+)-\d+ on", plan["plan"]))
    replicas = [int(number) for number in re.findall(r"on (\d+)", plan["plan"])]
    assert [len(devices) for devices in program[0]] == replicas
    assert first == 0
    assert abs(program[1][0] - last) <= 1
    (border,) = program[1]  # PipeDream hides all sums of gradients behind the computing, this program does not
    computing = max(work[:border].sum() / replicas[0], work[border:].sum() / replicas[1])
    assert plan["stage_ms"] <= computing / 1e3 <= 1.04 * plan["stage_ms"]
