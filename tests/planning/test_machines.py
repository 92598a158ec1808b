from dataclasses import replace
from pathlib import Path

import pytest

from placeto.evaluation.figures import machine_figure
from placeto.planning.machines import (
    FORMAT,
    Machine,
    MachinesRecord,
    machine_table,
    plan_on_each,
    save_machines,
    verdict,
)
from placeto.planning.model_plans import plan
from placeto.problem.checks import read_document
from placeto.problem.cluster import load_cluster
from placeto.problem.costs import load_costs
from placeto.problem.graph import ComputationGraph
from placeto.problem.json_files import read_json
from tests.toys import fork_of_chains, toy_cluster


@pytest.fixture(scope="module")
def machines() -> list[Machine]:
    """Two chains of ten ops of 10 us: on one device with no room, on two for 36 an hour, on a dear one for 720."""
    problem = fork_of_chains(2, 10)
    priced = replace(toy_cluster(2), name="priced", price_per_hour=36.0)
    tight = replace(toy_cluster(1, memory=150), name="tight", price_per_hour=1.0)
    dear = replace(toy_cluster(1), name="dear", price_per_hour=720.0)
    return plan_on_each([priced, tight, dear], problem.costs, lambda *_: problem.graph, 0, counts=(1,))


def test_a_tight_fit_is_told_unless_some_memory_is_kept_free() -> None:
    problem = fork_of_chains(2, 10)
    needed = plan_on_each([toy_cluster(1)], problem.costs, lambda *_: problem.graph, 0, counts=(1,))[0].best.used
    for memory, headroom in ((needed, 0), (needed + 100, 100)):
        on = [toy_cluster(1, memory=memory)]
        (machine,) = plan_on_each(on, problem.costs, lambda *_: problem.graph, 0, counts=(1,), headroom=headroom)
        assert machine.best.fits
        assert machine.best.room == needed
        assert ("--headroom 1GB" in machine.advice) == (headroom == 0)


def test_a_machine_with_a_price(machines: list[Machine]) -> None:
    machine = machines[0]
    assert (machine.best.kind, machine.best.step_us) == ("free placement", 100.0)
    assert (machine.one_device_us, machine.speed_up) == (200.0, 2.0)
    assert machine.price_per_step == pytest.approx(36.0 * 100e-6 / 3600)
    assert "1.00 times the samples a second" in machine.advice


def test_a_machine_that_is_too_small(machines: list[Machine]) -> None:
    machine = machines[1]
    assert not machine.best.fits
    assert (machine.speed_up, machine.price_per_step) == (None, None)
    assert "None of these fits" in machine.advice


def test_the_fastest_and_the_cheapest_hold_the_step(machines: list[Machine]) -> None:
    """The one that is too small counts for nothing."""
    assert verdict(machines) == "A step is fastest on priced: 100 us. It is cheapest on priced: 1000 steps cost 0.001."
    assert verdict(machines[1:]) == ""
    free = replace(machines[2], cluster=replace(machines[2].cluster, price_per_hour=7.2))
    assert verdict([machines[0], free]).endswith("on dear: 1000 steps cost 0.0004.")


def test_table_file_and_picture(machines: list[Machine], tmp_path: Path) -> None:
    head, first, second, _ = machine_table(machines).splitlines()
    assert head.split()[:4] == ["cluster", "best", "way", "shape"]
    assert " ".join(first.split()) == "priced free placement on 2 devices 1 - 100 us 2.00 yes 0.001"
    assert " ".join(second.split()) == "tight one device gpu:0 1 - 200 us - no -"
    assert "price" not in machine_table(machines[1:2])
    save_machines(machines, "fork", tmp_path / "table.json")
    document = read_json(tmp_path / "table.json", ValueError)
    read_document(document, FORMAT, "a comparison", MachinesRecord, ValueError)
    assert document["graph"] == "fork"
    first, second, _ = document["rows"]
    assert (first["cluster"], first["step_us"], first["one_device_us"], first["fits"]) == ("priced", 100.0, 200.0, True)
    assert (second["one_device_us"], second["price_per_step"], second["samples_per_second"]) == (None, None, None)
    axes = machine_figure(machines, "a title").axes[0]
    assert [bar.get_width() for bar in axes.patches] == [100.0, 200.0, 200.0, 200.0, 200.0]
    assert [bar.get_hatch() for bar in axes.patches] == [None, None, "//", None, None]


def test_a_step_is_captured_once_for_all_clusters_and_planned_as_alone() -> None:
    import torch
    from torch import nn

    from placeto.capture.trace import capture_training

    captured = list[tuple[int, ...]]()
    with torch.device("meta"):
        model, x = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)]), torch.zeros(16, 512)
    graphs = dict[tuple[int, ...], ComputationGraph]()

    def graph_of(*asked: int) -> ComputationGraph:
        if asked not in graphs:
            captured.append(asked)
            graphs[asked] = capture_training(model, (x,), torch.sum, micro_batches=asked[0])
        return graphs[asked]

    clusters = [load_cluster(name) for name in ("2xv100", "4xp100")]
    machines = plan_on_each(clusters, load_costs("efficiency"), graph_of, 16, counts=(1, 4), simulations=30)
    assert captured == [(1, 16, 1), (4, 16, 1)]
    for cluster, machine in zip(clusters, machines, strict=True):
        alone = plan(model, (x,), cluster=cluster, loss=torch.sum, micro_batches=(1, 4), simulations=30)
        assert str(machine.plans) == str(alone)
        assert machine.advice == alone.advice()
        assert f"{machine.samples_per_second:.0f}" == f"{16e6 / machine.best.step_us:.0f}"
    assert "samples/s" in machine_table(machines)
