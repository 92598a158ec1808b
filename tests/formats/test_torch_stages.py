"""The stages of a placement are found again, and what torch can't run is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from placeto.capture.trace import capture_training
from placeto.formats.exports.torch_stages import _forward_ops, _split, torch_stages
from placeto.formats.exports.units import LOSS, ExportError
from placeto.heuristics.plans import Plan
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.labels import BACKWARD_PASSES
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule, simulate
from tests.captures import Made
from tests.formats.torch_toys import WIDTH, Again, Late, Skip, captured, chain, planned, tied
from tests.toys import toy_cluster, work

GRAPH = captured(chain())


def test_a_plan_is_found_again() -> None:
    found = torch_stages(planned(GRAPH, [(0, 1), (2, 3)]))
    assert found.devices == ((0, 2), (1, 3))
    assert found.ranks == ((0, 2), (1, 3))
    assert found.micro_batches == ((0, 2), (1, 3))
    assert found.splits == (("2", "beginning"),)
    assert found.modules == (("0", "1"), ("2", "3"))
    for op, (module, part) in enumerate(zip(GRAPH.modules, GRAPH.passes, strict=True)):
        if module.isdigit() and GRAPH.micro_batches[op] >= 0:
            assert found.stage[op] == int(module) // 2, GRAPH.op_names[op]
        elif module == "loss":
            assert found.stage[op] == 1
        elif GRAPH.micro_batches[op] < 0:
            assert found.stage[op] == -1, part


def test_a_device_may_have_several_stages() -> None:
    schedule = planned(GRAPH, [(0,), (1,), (0,), (1,)])
    found = torch_stages(schedule)
    assert found.devices == ((0, 1, 0, 1),)
    assert found.ranks == ((0, 1),)
    for op, module in enumerate(GRAPH.modules):
        if module.isdigit() and GRAPH.micro_batches[op] >= 0:
            assert found.stage[op] == int(module), GRAPH.op_names[op]
    assert torch_stages(planned(GRAPH, [(0,), (1,), (0,)])).devices == ((0, 1, 0),)
    assert torch_stages(planned(GRAPH, [(0,), (0,), (1,)])).devices == ((0, 1),)  # neighbours are one stage


def test_a_border_in_a_block_is_cut_at_the_beginning_or_the_end_of_a_module() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 128, batch_first=True, dropout=0.0)
    x = torch.empty(8, 16, WIDTH)
    graph = capture_training(
        nn.TransformerEncoder(layer, 2), [x], lambda y: y.square().mean(), name="model", micro_batches=4
    )
    program = _forward_ops(graph, 4)[0]
    splits = {}
    paths = [graph.modules[op] for op in program.tolist()]
    for border in range(1, len(program)):
        if paths[border] == paths[border - 1]:
            with pytest.raises(ExportError, match="no module that is called once begins or ends between them"):
                _split(graph, program, border - 1, border)
            continue
        (module, side), cut = _split(graph, program, border - 1, border)
        assert cut == border
        splits[paths[border], module] = side
    assert splits["layers.0", "layers.0.self_attn"] == "end"  # the sum behind it
    assert splits["layers.0.norm1", "layers.0.norm1"] == "beginning"
    assert splits["layers.1.self_attn", "layers.1.self_attn"] == "beginning"
    assert splits["layers.0", "layers.0.linear2"] == "end"


def test_the_loss_may_stand_apart() -> None:
    schedule = planned(GRAPH, [(0,), (1,)])
    placement = schedule.placement.copy()
    placement[[op for op, module in enumerate(GRAPH.modules) if module == "loss"]] = 2
    found = torch_stages(simulate(schedule.problem, placement))
    assert found.devices == ((0, 1),)
    assert (found.stage[placement == 2] == 1).all()


def refused(schedule: Schedule, sentence: str) -> None:
    with pytest.raises(ExportError, match=sentence) as caught:
        torch_stages(schedule)
    assert "\n" not in str(caught.value)


def moved(name: str, device: int, devices: tuple[tuple[int, ...], ...] = ((0,), (1,))) -> Schedule:
    """A plan with one op elsewhere."""
    schedule = planned(GRAPH, devices)
    placement = schedule.placement.copy()
    placement[GRAPH.index[name]] = device
    return simulate(schedule.problem, placement)


def test_what_no_pipeline_is_is_refused() -> None:
    whole = PlacementProblem(captured(chain(), 1), load_cluster("2xv100"))
    refused(
        simulate(whole, np.zeros(whole.num_ops, np.int64)), "no training step in micro-batches: .* --micro-batches 2"
    )
    name = next(GRAPH.op_names[op] for op, module in enumerate(GRAPH.modules) if module == "1" and _forward(op, 2))
    refused(moved(name, 1), "micro-batch 2 .* torch runs the same stages for all: place with --placer torch-pipeline")


def test_gradients_are_moved_to_the_stage_of_their_forward_pass() -> None:
    as_planned = torch_stages(planned(GRAPH, [(0,), (1,)]))
    for op in (op for op, module in enumerate(GRAPH.modules) if module.isdigit() and _backward(op)):
        for device in range(3):
            found = torch_stages(moved(GRAPH.op_names[op], device))
            assert found.stage.tolist() == as_planned.stage.tolist(), GRAPH.op_names[op]


def _forward(op: int, micro_batch: int) -> bool:
    return bool(GRAPH.micro_batches[op] == micro_batch) and GRAPH.passes[op] == "forward"


def _backward(op: int) -> bool:
    return bool(GRAPH.micro_batches[op] == 1) and GRAPH.passes[op] in BACKWARD_PASSES


def test_replicas_that_are_none_are_refused() -> None:
    refused(planned(GRAPH, [(0,), (1, 2)]), "gpu:0 runs micro-batches that differ .* replicas that share no device")
    refused(planned(captured(chain(), 5), [(0, 1), (2, 3)]), "replicas run 2 to 3 micro-batches, .* that 2 divides")


def test_models_that_torch_cannot_cut_are_refused() -> None:
    refused(planned(captured(Skip()), [(0,), (1,), (2,)]), "of stage 0 is read by .* of stage 2; .* fewer devices")
    refused(planned(captured(Late()), [(0,), (1,)]), "of stage 1 reads the model's input x; .* first stage only")
    refused(planned(captured(tied()), [(0,), (1,)]), "is read in stage 0 by 0 and in stage 1 by 3; .* untie it")
    two_ways = planned(captured(tied()), [(0,), (1,)])
    moved_too = two_ways.placement.copy()
    graph = two_ways.problem.graph
    first = next(op for op, path in enumerate(graph.modules) if path == "1" and graph.micro_batches[op] == 1)
    moved_too[first] = 2  # torch can't run that either, but untying comes first
    refused(simulate(two_ways.problem, moved_too), "is read in stage 0 by 0 and in stage .* by 3; .* untie it")
    refused(planned(captured(Again()), [(0,), (1,)]), "no module that is called once begins or ends between them")
    assert len(torch_stages(planned(captured(Skip()), [(0,), (1,)])).splits) == 1


def test_outputs_of_an_earlier_stage_are_refused() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.layers[1](self.layers[0](x))
            return y, self.layers[3](self.layers[2](y))

    graph = capture_training(
        Both(), [torch.empty(32, WIDTH)], lambda both: (both[0] - both[1]).square().mean(), micro_batches=4
    )
    refused(planned(graph, [(0,), (1,)]), "layers.1/addmm of stage 0 is read by the loss; .* the last stage only")
    assert torch_stages(planned(graph, [(0, 1)])).devices == ((0,), (1,))


def test_a_model_that_computes_its_loss_is_refused() -> None:
    class WithLoss(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).square().mean()  # type: ignore[no-any-return]

    model = WithLoss(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    graph = capture_training(model, [torch.empty(8, WIDTH)], None, name="model", micro_batches=4)
    refused(planned(graph, [(0,), (1,)]), "the model computes its loss itself")


def test_a_forward_pass_that_takes_no_time_has_no_stages() -> None:
    free = {"pass": "forward", "time_us": {"*": 0.0}, "outputs": [1]}
    ops = [{"name": f"a{number}", "module": "net", "micro_batch": number, **free} for number in range(2)]
    ops += [{**op, "name": f"l{op['name']}", "module": LOSS, "inputs": [[op["name"], 0]], **work(5.0)} for op in ops]
    problem = PlacementProblem(ComputationGraph.from_ops("net", ops), toy_cluster(2))
    refused(simulate(problem, np.array([0, 1, 0, 1])), "net: no op of the forward pass takes time")


def test_plans_for_torch_are_those_with_equal_replicas() -> None:
    problem = PlacementProblem(GRAPH, load_cluster("4xv100"))
    assert Plan(((0, 1), (2, 3)), (2,), 5).even(problem)
    assert not Plan(((0,), (1, 2, 3)), (2,), 5).even(problem)
    assert not Plan(((0, 1, 2),), (), 5).even(problem)  # 4 micro-batches


def test_a_loss_that_is_trained_is_refused() -> None:
    loss: Any = Made(lambda self, y: (y * self.weight).square().mean(), weight=nn.Parameter(torch.ones(WIDTH)))
    x = torch.empty(32, WIDTH)
    for trained in (False, True):
        loss.weight.requires_grad_(trained)
        graph = capture_training(chain(), [x], loss, name="model", micro_batches=4)
        if trained:
            refused(planned(graph, [(0,), (1,)]), r"the loss reads the trained parameter .*weight")
        else:
            assert torch_stages(planned(graph, [(0,), (1,)])).devices == ((0, 1),)
