"""Profiles of small steps: what was measured is what a problem then costs."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from placeto.errors import RunError
from placeto.heuristics import HEURISTICS
from placeto.problem.cluster import load_cluster, save_cluster
from placeto.problem.costs.profiled import load_profiled, save_profiled
from placeto.problem.problem import PlacementProblem
from placeto.runtime.local_devices import LocalDevice, open_devices
from placeto.runtime.measuring.measure import measure
from placeto.runtime.measuring.profiling import Profile, _overhead_us, profile
from placeto.runtime.real_steps import RealStep, real_training
from tests.captures import Shared, mlp


def step(module: nn.Module, name: str) -> RealStep:
    torch.manual_seed(0)
    return real_training(module, [torch.randn(4, 8)], lambda y: y.square().mean(), name=name)


@pytest.fixture(scope="module")
def made() -> Profile:
    return profile([step(mlp(), "mlp"), step(Shared(), "shared")], open_devices(["cpu:0"]), seconds=0.2)


def test_every_signature_of_the_steps_is_measured_once(made: Profile) -> None:
    signatures = [op.signature for op in made.costs.ops]
    assert len(set(signatures)) == len(signatures)
    assert set(signatures) == {s for one in made.measured for s in one.step.capture.graph.signatures if s}
    assert all(op.time_us["cpu"] > 0 for op in made.costs.ops)
    assert set(made.costs.fits["cpu"]) == {"*"} | {op.type for op in made.costs.ops}


def test_a_signature_takes_the_mean_of_the_calls_that_have_it(made: Profile) -> None:
    one = made.measured[1]
    graph, us = one.step.capture.graph, one.by_node()
    signature = next(s for s in graph.signatures if s.startswith("aten.tanh.default"))
    calls = [us[one.step.capture.nodes[op][0]] for op, own in enumerate(graph.signatures) if own == signature]
    assert len(calls) == 3
    measured = next(op.time_us["cpu"] for op in made.costs.ops if op.signature == signature)
    assert measured == pytest.approx(np.mean(calls))


def test_ops_and_overheads_together_are_what_the_calls_took(made: Profile) -> None:
    calls = sum(float(one.call_us.sum()) for one in made.measured)
    predicted = sum(row["predicted_us"] for row in made.costs.steps)
    least_us = 1e-3 * sum(len(one.program.calls) for one in made.measured)  # an op takes 0.001 us or more
    assert predicted == pytest.approx(calls, rel=1e-6, abs=least_us)
    assert made.cluster.devices[0].overhead_us > 0  # views, at least
    assert [row["name"] for row in made.costs.steps] == ["mlp", "shared"]
    assert all(row["measured_us"] > 0 and row["eager_us"] > 0 for row in made.costs.steps)


def test_files_of_costs_and_cluster_give_the_problem(made: Profile, tmp_path: object) -> None:
    save_profiled(made.costs, f"{tmp_path}/costs.json")
    save_cluster(made.cluster, f"{tmp_path}/mine.json")
    graph = made.measured[0].step.capture.graph
    problem = PlacementProblem(graph, load_cluster(f"{tmp_path}/mine.json"), load_profiled(f"{tmp_path}/costs.json"))
    measured = {op.signature: op.time_us["cpu"] for op in made.costs.ops}
    assert problem.op_time[:, 0].tolist() == [measured.get(signature, 0.0) for signature in graph.signatures]
    result = HEURISTICS["heft"](problem)
    assert result.makespan_us == pytest.approx(made.costs.steps[0]["predicted_us"])


def test_what_a_kernel_refuses_is_one_line() -> None:
    bad = real_training(nn.Embedding(4, 2), [torch.tensor([9])], lambda y: y.sum(), name="bad")
    with pytest.raises(RunError, match="bad on cpu:0: IndexError: index out of range"):
        measure([bad], open_devices(["cpu:0"])[0], 0.1)


def test_the_overhead_of_a_gpu_is_what_steps_take_beside_their_ops(made: Profile) -> None:
    gpu = LocalDevice("cuda:0", "a GPU", torch.device("cuda:0"), 1, ThreadPoolExecutor(1))
    steps, ops = [], []
    for one, more in zip(made.measured, (3.0, 5.0), strict=True):
        capture, us = one.step.capture, one.by_node()
        times = [
            us[nodes[0]] for nodes, signature in zip(capture.nodes, capture.graph.signatures, strict=True) if signature
        ]
        ops.append(len(times))
        steps.append(replace(one, device=gpu, step_us=sum(times) + more * len(times)))
    assert _overhead_us(steps[:1]) == pytest.approx(3.0)
    assert _overhead_us(steps) == pytest.approx(np.average([3.0, 5.0], weights=ops))
    assert _overhead_us([replace(one, step_us=1.0) for one in steps]) == 0.0  # a GPU that is behind the host
