"""The stages of a plan are those that torch gets, and what torch can't run is refused."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from experiments.golden_cells import captured as models
from placeto.capture.trace import capture_training
from placeto.errors import PlanError
from placeto.formats.exports import torch_pipeline
from placeto.heuristics.pipelines.plans import all_plans, make_plan
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.module_paths import LOSS
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule, simulate
from tests.captures import Made
from tests.formats.torch_toys import (
    OWN_GRADIENTS,
    WIDTH,
    Late,
    Reversal,
    again,
    captured,
    chain,
    planned,
    skip,
    tied,
)
from tests.parts import through
from tests.toys import toy_cluster, work

GRAPH = captured(chain())


@pytest.mark.parametrize(
    ("devices", "replicas"),
    [
        ([(0, 1), (2, 3)], ((0, 2), (1, 3))),
        ([(0,), (1,), (0,), (1,)], ((0, 1, 0, 1),)),
        ([(0,), (1,), (0,)], ((0, 1, 0),)),
        ([(0,), (1,), (1,), (0,)], ((0, 1, 1, 0),)),  # neighbours stay apart
    ],
)
def test_a_device_may_have_several_stages(
    devices: list[tuple[int, ...]], replicas: tuple[tuple[int, ...], ...]
) -> None:
    found = torch_pipeline(planned(GRAPH, devices))
    assert found.order.plan.replicas == replicas
    for op, module in enumerate(GRAPH.modules):
        if GRAPH.micro_batches[op] < 0:
            assert found.order.stage[op] == -1
        elif module.isdigit() and len(devices) != 3:
            assert found.order.stage[op] == int(module) * len(devices) // 4, GRAPH.op_names[op]
        elif module == "loss":
            assert found.order.stage[op] == len(devices) - 1


def refused(schedule: Schedule, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence) as caught:
        torch_pipeline(schedule)
    assert "\n" not in str(caught.value)


def test_modules_that_are_called_in_others_are_refused() -> None:
    layers, act = chain(3), nn.GELU()

    def adapter(*kept: nn.Module) -> nn.Module:
        return Made(lambda m, x: m.own(through(m.kept, x)), kept=kept, own=nn.Linear(WIDTH, WIDTH))

    for kept, path in ((layers[0], "layers.0"), (act, "act")):
        model = Made(lambda m, x: m.layers(m.adapter(x)), layers=layers, act=act, adapter=adapter(kept))
        refused(
            planned(captured(model), [(0,), (1,)]), f"{path} is called in adapter, which doesn't contain it, .* part"
        )


def test_replicas_that_are_none_are_refused() -> None:
    refused(planned(GRAPH, [(0,), (1, 2)]), "its replicas differ in number or in their micro-batches, .* equally many")
    refused(planned(captured(chain(), 5), [(0, 1), (2, 3)]), "its replicas differ in number or in their micro-batches")
    whole = PlacementProblem(captured(chain(), 1), load_cluster("2xv100"))
    refused(simulate(whole, make_plan(whole, ((0,), (1,)))), "no training step in micro-batches: .* --micro-batches 2")
    free = PlacementProblem(GRAPH, load_cluster("2xv100"))
    refused(
        simulate(free, np.zeros(GRAPH.num_ops, np.int64)),
        "model: the placement has no plan: .* place with --placer torch-pipeline",
    )


def test_models_that_torch_cannot_cut_are_refused() -> None:
    refused(planned(captured(skip()), [(0,), (1,), (2,)]), "is read by .*, more than one stage later; .* fewer stages")
    refused(planned(captured(Late(*chain())), [(0,), (1,)]), "reads the model's input x; .* first stage only")
    refused(planned(captured(tied()), [(0,), (1,)]), "is read before it by 0 and behind it by 3; .* untie it")
    refused(planned(captured(again()), [(0,), (1,)]), "no module that is called once begins or ends between")
    assert len(torch_pipeline(planned(captured(skip()), [(0,), (1,)])).splits) == 1


@OWN_GRADIENTS
@pytest.mark.parametrize("again", [False, True])
def test_gradients_of_their_own_are_refused_before_the_export(
    layer: Callable[[], nn.Module], what: str, again: bool
) -> None:
    """As the exported program does; replicas have them, and so has a loss."""
    layers = chain()
    layers[1] = layer()
    if again:
        layers[2] = Made(lambda self, x: checkpoint(self.layer, x, use_reentrant=True), layer=layers[2])
    graph = captured(layers)
    refused(planned(graph, [(0,), (1,)]), f"model: {what} in 1 makes gradients of its own, .* or run replicas")
    assert torch_pipeline(planned(graph, [(0, 1)])).order.plan.replicas == ((0,), (1,))
    x = torch.empty(32, WIDTH)
    of_loss = capture_training(chain(), [x], lambda y: Reversal.apply(y).square().mean(), micro_batches=4)
    assert torch_pipeline(planned(of_loss, [(0,), (1,)])).splits


def test_complex_numbers_between_stages_are_refused() -> None:
    """torch (2.13) passes no gradients of them; a table of complex numbers is made in each stage."""
    turn = Made(lambda self, x: torch.polar(x, x))
    back = Made(lambda self, z: z.abs())
    inner = [Made(lambda self, z: z * self.by, by=nn.Parameter(torch.ones(WIDTH))) for _ in range(2)]
    refused(planned(captured(nn.Sequential(turn, *inner, back)), [(0,), (1,)]), "makes complex numbers, .* torch.stack")

    def turned(module: Any, x: Tensor) -> Tensor:
        angles = torch.arange(WIDTH) / WIDTH
        table = torch.polar(torch.ones(WIDTH), angles)
        return through([partial(layer, table=table) for layer in module.layers], x)

    def turning(module: Any, x: Tensor, table: Tensor) -> Tensor:
        return module.layer(torch.view_as_real(x * table).sum(-1))

    layers = [Made(turning, layer=nn.Linear(WIDTH, WIDTH)) for _ in range(4)]
    model = Made(turned, layers=nn.ModuleList(layers))
    assert torch_pipeline(planned(captured(model), [(0,), (1,)])).splits


def test_a_frozen_weight_may_be_read_by_two_stages() -> None:
    """Each of the two has a copy of it, and the copies stay equal."""
    model = tied()
    model[0].weight.requires_grad_(False)  # type: ignore[union-attr, operator]
    step = torch_pipeline(planned(captured(model), [(0,), (1,)])).step
    graph = step.problem.graph
    copies = [graph.index[f"0.weight on {device}"] for device in ("gpu:0", "gpu:1")]
    assert [*step.placement[copies]] == [0, 1]
    assert [*graph.param_bytes[copies]] == [4 * WIDTH * WIDTH] * 2


def test_outputs_of_an_earlier_stage_are_refused() -> None:
    both = Made(lambda self, x: (y := self.layers[:2](x), self.layers[2:](y)), layers=chain())
    graph = capture_training(
        both, [torch.empty(32, WIDTH)], lambda both: (both[0] - both[1]).square().mean(), micro_batches=4
    )
    refused(planned(graph, [(0,), (1,), (2,)]), "layers.1/addmm before it is read by the loss; .* the last stage only")
    assert torch_pipeline(planned(graph, [(0, 1)])).order.plan.replicas == ((0,), (1,))
    rebuilt = Made(lambda self, x: (self.layers(x), x), layers=chain())
    graph = capture_training(
        rebuilt, [torch.empty(32, WIDTH)], lambda both: (both[0] - both[1]).square().mean(), micro_batches=4
    )
    refused(planned(graph, [(0,), (1,)]), r"the loss reads the model's input inputs\[0\], .* as a target")
    assert torch_pipeline(planned(graph, [(0, 1)])).order.plan.replicas == ((0,), (1,))


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
    refused(simulate(problem, make_plan(problem, ((0, 1),))), "net: no op of the forward pass takes time")


def test_plans_for_torch_are_those_with_equal_replicas() -> None:
    problem = PlacementProblem(GRAPH, load_cluster("4xv100"))
    assert make_plan(problem, ((0, 1), (2, 3))).even
    assert not make_plan(problem, ((0,), (1, 2, 3))).even
    assert not make_plan(problem, ((0, 1, 2),)).even  # 4 micro-batches


def test_a_loss_that_is_trained_is_refused() -> None:
    loss: Any = Made(lambda self, y: (y * self.weight).square().mean(), weight=nn.Parameter(torch.ones(WIDTH)))
    x = torch.empty(32, WIDTH)
    for trained in (False, True):
        loss.weight.requires_grad_(trained)
        graph = capture_training(chain(), [x], loss, name="model", micro_batches=4)
        if trained:
            refused(planned(graph, [(0,), (1,)]), r"the loss reads the trained parameter .*weight")
        else:
            assert torch_pipeline(planned(graph, [(0,), (1,)])).order.plan.replicas == ((0, 1),)


@pytest.mark.parametrize("name", ["MLP", "language model with dropout", "convolutions", "LSTM"])
def test_every_plan_keeps_its_stages_or_is_refused_before_it_is_placed(name: str) -> None:
    problem = PlacementProblem(models(name), load_cluster("4xv100"))
    graph, busy = problem.graph, problem.op_time.mean(axis=1) > 0.0
    kept = 0
    for plan in all_plans(problem):
        schedule = simulate(problem, plan)
        if why := plan.refusal(problem):
            refused(schedule, re.escape(why))
            continue
        found = torch_pipeline(schedule)
        assert len(found.splits) == len(plan.borders)
        own = busy & (graph.micro_batches >= 0)
        assert (found.order.stage[own] == plan.layers(problem).stage(plan.borders)[own]).all()
        assert (schedule.placement[own] == plan.device[found.order.stage[own], graph.micro_batches[own]]).all()
        kept += 1
    assert kept


@pytest.mark.parametrize(
    ("table", "refused_for"),
    [
        (lambda x: torch.arange(WIDTH, dtype=x.dtype).cos(), ""),
        (lambda x: torch.ones(len(x), 1).tril(), ""),
        (lambda x: torch.full((len(x), WIDTH), -1.0).triu_(1).exp_(), ""),
        (lambda x: x.new_full((WIDTH,), 2.0).cos(), ""),  # no value of the input
        (lambda x: torch.ones_like(x[:, :1].expand(-1, WIDTH)).tril(), ""),
        (lambda x: torch.rand(WIDTH).cos(), "more than one stage later"),
        (lambda x: torch.rand_like(torch.arange(WIDTH, dtype=x.dtype).cos()), "more than one stage later"),
        (lambda x: x.mean(0).cos(), "more than one stage later"),
    ],
)
def test_each_stage_computes_tables_itself(table: Callable[[Tensor], Tensor], refused_for: str) -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        shared = table(x)
        for layer in model.layers:
            x = layer(x * shared)
        return x

    schedule = planned(captured(Made(forward, layers=chain(8))), [(0,), (1,), (2,)])
    if refused_for:
        refused(schedule, refused_for)
        return
    step = torch_pipeline(schedule).step
    graph = step.problem.graph
    made = [name for name in graph.op_names if name.endswith(" in stage 2")]
    assert len(made) % 4 == 0
    assert made, "each of four micro-batches"
    sent = [op for op in graph.producer[step.send_tensor].tolist() if graph.passes[op] == "forward"]
    assert len(sent) == 8, "an activation over each of two borders in each of four micro-batches"
