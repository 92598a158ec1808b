"""Whether a step fits a device."""

from dataclasses import replace

import numpy as np
import pytest

from placeto.errors import CaptureError
from placeto.planning.fits import Fits, device_of, fits
from placeto.planning.planned_steps import Kind
from placeto.planning.variants import Variants
from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.costs import EFFICIENCY
from placeto.problem.graph import ComputationGraph
from tests.captures import chained

WIDTH, LAYERS, BATCH = 512, 4, 4096
WHOLE = LAYERS * WIDTH * WIDTH * 4  # bytes of the parameters


def asked(cluster: Cluster, counts: tuple[int, ...] = (1, 2, 4, 8, 16), batch: int = BATCH) -> Fits:
    def graph_of(count: int, samples: int, width: int) -> ComputationGraph:
        return chained(LAYERS, WIDTH, samples, count, bias=False)

    return fits(Variants(graph_of, cluster, EFFICIENCY, batch), counts)


def test_what_fits_as_it_is_is_asked_once() -> None:
    found = asked(load_cluster("2xv100"))
    (need,) = found.steps
    assert (need.fits, need.micro_batches, need.kind, need.resident_bytes) == (True, 1, Kind.ONE, 4 * WHOLE)
    assert need.memory["weights"] == need.memory["gradients"] == need.memory["optimizer"] // 2 == WHOLE
    layer = BATCH * WIDTH * 4
    # the inputs of all layers but the first, the last output, and what the loss makes of it
    assert LAYERS * layer <= need.memory["activations"] <= (LAYERS + 4) * layer
    assert found.advice() == "It fits on v100 (16.0 GB), with 15.9 GB left."


def test_micro_batches_are_tried_until_it_fits() -> None:
    whole = asked(load_cluster("2xv100")).steps[0]
    found = asked(device_of(4 * WHOLE + (whole.used - 4 * WHOLE) * 3 // 5))
    assert [need.micro_batches for need in found.steps] == [1, 2]
    assert [need.fits for need in found.steps] == [False, True]
    one, two = (need.memory["activations"] for need in found.steps)
    assert two == pytest.approx(one / 2, rel=0.01)
    assert "in 2 micro-batches, with" in found.advice()
    assert "lacks" in str(found)


def test_what_never_fits_is_told_at_once() -> None:
    found = asked(device_of(3 * WHOLE))
    assert [need.micro_batches for need in found.steps] == [1]
    told = "It doesn't fit on device (12.6 MB): weights, gradients and optimizer take 16.8 MB. It fits with 8 devices: "
    assert found.advice().startswith(told)
    assert "Not enough: the optimizer's state in the memory of the host lacks 4 B" in found.advice()
    assert " Not tried: activation checkpoints, which a FACTORY can " in found.advice()
    assert "; an optimizer with less state (" in found.advice()


def test_each_way_out_is_the_least_change_with_which_it_fits() -> None:
    found = asked(device_of(4 * WHOLE + 3_000_000), (1, 4))
    assert [need.micro_batches for need in found.steps] == [1, 4]
    assert [way.change for way in found.ways_out] == [
        "--micro-batches 32",
        "a batch of 680",
        "the optimizer's state in the memory of the host",
        "4 devices",
    ]
    numbers, batch, on_host, devices = (way.step for way in found.ways_out)
    assert all(step.fits for step in (numbers, batch, on_host, devices))
    assert "It fits with --micro-batches 32: one device (device) in 32 micro-batches, 19.1 MB of " in found.advice()
    room = batch.room
    assert [asked(device_of(room), (4,), samples).steps[0].fits for samples in (680, 748)] == [True, False]
    assert not asked(device_of(room), (16,)).steps[0].fits
    none = asked(device_of(4 * WHOLE + 1), (1, 8))
    assert "Not enough: --micro-batches 64 lacks 1.70 MB; a batch of 8 lacks 1.06 MB." in none.advice()


def test_the_hosts_may_keep_the_optimizers_state() -> None:
    """By hand: Adam's is twice as large as the parameters. Gradients go to a host, weights come back."""
    found = asked(device_of(3 * WHOLE + 1_000_000))
    change, step, further_us, on_host = found.ways_out[0]
    assert (step.kind, step.micro_batches, step.memory["optimizer"], on_host) == (Kind.ONE, 16, 0, 2 * WHOLE)
    assert step.resident_bytes == 2 * WHOLE
    touched = (2 * 2 + 1 + 2) * WHOLE  # state and weights are read and written, gradients are read
    assert further_us == pytest.approx(2 * WHOLE / 12e3 + touched / 153.5e3)
    assert (
        f"{change}: one device (device) in 16 micro-batches, 12.6 MB of 13.6 MB and 8.39 MB of the host's; with 8 "
        in (found.advice())
    )
    four, host_of = device_of(2 * WHOLE), (0, 0, 1, 1)
    devices = tuple(replace(four.devices[0], name=f"d{number}", memory=WHOLE) for number in range(4))
    hosts = Cluster("hosts", devices, np.full((4, 4), 1e4), np.full((4, 4), 1.0), hosts=host_of)
    (lack,) = (way for way in asked(hosts, (4,)).ways_out if "hosts" in way.change)
    assert lack.on_host == WHOLE, "each host has half of it"
    assert lack.further_us == pytest.approx(2 * WHOLE / 4 / 12e3 + touched / 2 / 153.5e3)


def test_a_tight_fit_is_warned_of() -> None:
    need = asked(load_cluster("2xv100")).steps[0].used
    assert "Only 1 B of " in asked(device_of(need + 1)).advice()
    assert "--headroom 1GB" in asked(device_of(need * 26 // 25)).advice()
    assert "--headroom" not in asked(device_of(need * 19 // 18)).advice()
    assert "--headroom" not in replace(asked(device_of(need + 1)), headroom=1000).advice(), "it was given"


def test_parameters_are_divided_where_nothing_else_helps() -> None:
    cluster = load_cluster("4xv100")
    devices = device_of(3 * WHOLE).devices * 4
    named = tuple(type(one)(f"d{number}", *list(vars(one).values())[1:]) for number, one in enumerate(devices))
    small = Cluster("small", named, cluster.bandwidth, cluster.latency_us)
    found = asked(small, batch=64)
    assert [(need.kind, need.micro_batches) for need in found.steps] == [(Kind.ONE, 1), (Kind.FULLY_SHARDED, 4)]
    assert found.steps[-1].fits
    assert found.steps[-1].resident_bytes == WHOLE
    assert "With its parameters divided over 4 devices it fits in 4 micro-batches" in found.advice()
    assert [step.micro_batches for step in asked(small).steps] == [1, 4, 8, 16]
    odd = asked(small, batch=63)
    assert [step.kind for step in odd.steps] == [Kind.ONE, Kind.WHOLE], "as `placeto plan` would find"
    assert "As whole modules (on 2 devices) it fits: each has 9.29 MB" in odd.advice()
    assert "can't be split into 4" in odd.left_out[4]
    with pytest.raises(CaptureError, match="can't be split into 5"):
        asked(small, (5,), batch=64)
