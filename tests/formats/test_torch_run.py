"""What docs/pipelines.md tells the reader to type trains the model, in two processes, as the whole model."""

import json
import math
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_training
from placeto.formats.exports import save_torch_pipeline, torch_pipeline, torch_run
from placeto.formats.plan import load_plan
from placeto.heuristics.pipelines.plans import make_plan
from placeto.problem.cluster import load_cluster, save_cluster
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.captures import Made, called
from tests.cases import with_devices
from tests.command_line import run
from tests.forked_ranks import run_ranks

PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()


DEEP = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.narrow(self.wide(x).tanh())


def net(batch=8):
    return nn.Sequential(*(Block() for _ in range(8))), (torch.randn(batch, 64, 64),), lambda y: y.square().mean()
"""


def off_by(out: str) -> dict[int, float]:
    """Stage -> how far its gradients are off those of the whole model."""
    found = re.findall(r"^stage (\d): \d+ gradients, off by (\S+) at most$", out, re.MULTILINE)
    return {int(stage): float(off) for stage, off in found}


def assert_losses_of_the_whole_model(out: str) -> list[float]:
    """The losses of three steps, which are those of the whole model."""
    losses = re.findall(r"^step \d+: loss (\S+), \S+ ms; whole model: loss (\S+)$", out, re.MULTILINE)
    assert len(losses) == 3
    assert all(float(mine) == pytest.approx(float(whole), rel=1e-4) for mine, whole in losses)
    return [float(mine) for mine, _ in losses]


@pytest.mark.slow
def test_the_page_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (_, program), *blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    Path("mixer.py").write_text(program)
    commands, exported, checked = (block for _, block in blocks[:3])
    place, export, train = (shlex.split(line) for line in commands.splitlines())
    assert run(*place[1:]) == 0
    capsys.readouterr()
    assert run(*export[1:]) == 0
    assert capsys.readouterr().out == exported
    assert train[:4] == ["torchrun", "--standalone", "--nproc-per-node", "2"]
    out = run_ranks(*train[4:], ranks=2, folder=tmp_path)
    apart = off_by(out)
    assert sorted(apart) == list(range(exported.count("\nstage ")))
    assert max(apart.values()) < 1e-6
    losses = assert_losses_of_the_whole_model(out)
    assert losses[-1] < losses[0]
    shape = re.compile(r"\d[\d.e-]*")
    printed = {shape.sub("0", line) for line in out.splitlines()}
    assert {shape.sub("0", line) for line in checked.splitlines()} <= printed


@pytest.mark.slow
def test_a_pipeline_that_was_planned_for_little_memory_trains_as_the_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`placeto run` starts it. It recomputes blocks; data parallelism would be slow over this link."""
    monkeypatch.chdir(tmp_path)
    Path("deep.py").write_text(DEEP)
    cluster = with_devices("2xp100", memory=3_600_000)
    save_cluster(replace(cluster, bandwidth=cluster.bandwidth / 40), "small.json")
    step = ("deep.py:net", "--cluster", "small.json", "--micro-batches", "4")
    assert run("plan", *step, "--runnable-by", "torch", "-o", "plan.json") == 0
    planned = load_plan("plan.json")
    assert "pipeline" in planned.kind
    assert planned.fits
    assert run("export", *step, "--placement", "plan.json", "--format", "torch-pipeline", "-o", "made") == 0
    exported = json.loads(Path("made/plan.json").read_text())
    assert exported["recomputed"] == planned.plan["recomputed"] != []
    capsys.readouterr()
    assert run("run", *step, "--plan", "plan.json", "--devices", "cpu:0,cpu:1", "--check", "--steps", "1") == 0
    apart = off_by(out := capsys.readouterr().out)
    assert re.search(r"^step +\S+ \w+ in the median of 1, spread \S+ \w+, simulated \S+ \w+$", out, re.MULTILINE)
    assert len(apart) == len(exported["split_points"]) + 1 >= 2
    assert max(apart.values()) < 1e-6
    assert_losses_of_the_whole_model(out)


ORDERED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, *, x, scale):
        between = y = self.layers[0](scale.sin() - x)
        for layer in self.layers[1:]:
            y = layer(y)
        tanh, cosine = y.tanh(), y.cos()
        return {"cosine": cosine, "between": between, "all": [y, tanh, y]}


def loss(made):
    y, tanh, again = made["all"]
    return (made["cosine"] - 3 * tanh + y * again).square().mean()


def net():
    return Net(), {"x": torch.randn(8, 16), "scale": torch.randn(8, 16)}, loss
"""


COUNTING = """
import runpy
from torch.distributed.optim import ZeroRedundancyOptimizer

step = ZeroRedundancyOptimizer.step


def counted(self, *arguments, **more):
    result = step(self, *arguments, **more)
    (group,) = self.param_groups
    print(f"the state of {len(self.optim.state)} of {len(group['params'])} weights", flush=True)
    return result


ZeroRedundancyOptimizer.step = counted
runpy.run_path("made/run.py", run_name="__main__")
"""


@pytest.mark.slow
def test_replicas_share_out_the_optimizer_and_inputs_and_outputs_are_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stages of two replicas: each of a stage keeps the state of some of its weights.

    The first stage reads the inputs in another order than they are given, and outputs are made in another one.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "made")
    Path("ordered.py").write_text(ORDERED)
    Path("counting.py").write_text(COUNTING)
    module, inputs, loss = torch_run.find("ordered.py:net")()
    problem = PlacementProblem(capture_training(module, inputs, loss, micro_batches=4), load_cluster("4xp100"))
    plan = make_plan(problem, ((0, 1), (2, 3))).sharing_out()
    assert plan.line(problem.cluster) == "2 stages x 2, optimizer sharded, 4 micro-batches"
    assert "without the weights" in plan.refusal(problem, "torchtitan")
    made = torch_pipeline(simulate(problem, plan.placement(problem), plan=plan))
    save_torch_pipeline(made, tmp_path / "made", factory="ordered.py:net")
    out = run_ranks("counting.py", "--check", "--steps", "3", "--device", "cpu", ranks=4, folder=tmp_path)
    assert max(off_by(out).values()) < 1e-6
    assert_losses_of_the_whole_model(out)
    states = re.findall(r"^the state of (\d+) of (\d+) weights$", out, re.MULTILINE)
    assert len(states) == 4 * 3
    assert all(int(kept) < int(weights) for kept, weights in states)
    assert 2 * sum(int(kept) for kept, _ in states) == sum(int(weights) for _, weights in states)


def test_the_check_finds_gradients_that_differ(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first replica of a stage says so, of all of them."""
    other = 0.0  # how far another replica's gradients are off

    def draw() -> None:
        if draws:
            torch.rand(1)

    def all_reduce(off: Tensor, op: object, group: int) -> None:
        off.clamp_(min=other)

    reduce = SimpleNamespace(ReduceOp=SimpleNamespace(MAX=None), all_reduce=all_reduce, get_rank=lambda group=0: group)
    monkeypatch.setattr(torch_run, "dist", reduce)

    def step(added: float, group: int = 0) -> str:
        model, x, target = nn.Linear(3, 2), torch.randn(4, 3), torch.randn(4, 2)
        loss = nn.functional.mse_loss
        made = torch_run.Step(torch.device("cpu"), 4, model, [x], loss, [target], None)
        whole = torch_run.Whole(made, torch.optim.SGD, 0.1, 2)
        whole.step.module.register_forward_hook(lambda *_: draw())
        stage = torch_run.OfTensors(model, [x])
        value = loss(stage(x), target)
        value.backward()
        model.bias.grad += added  # type: ignore[operator]
        assert whole.trained([x], [target]) == pytest.approx(value.item(), abs=1e-6)
        whole.compare([("stage 0", stage, group)])
        return capsys.readouterr().out

    draws = False
    off = re.search(r"2 gradients, off by (\S+) at most", step(0.0))
    assert float(off[1]) < 1e-6
    assert "2 gradients, off by 0.25 at most" in step(0.25)
    assert "2 gradients, off by nan at most" in step(math.nan)
    assert step(0.25, 1) == ""
    other = 0.5
    told = step(0.25)
    assert "2 gradients, off by 0.5 at most" in told
    assert "random" not in told
    draws = True
    assert step(0.25).startswith("note: the model draws random numbers, as for dropout; ")


def test_inputs_of_all_kinds_are_taken_apart() -> None:
    x, y = torch.ones(4), torch.arange(4.0)
    inputs = {"x": x, "scale": 2.0, "other": [y]}
    model = torch_run.OfTensors(Made(lambda self, *, x, scale, other: x * scale + other[0]), inputs)
    assert model(*torch_run.tensors_of(inputs)).tolist() == [2.0, 3.0, 4.0, 5.0]
    assert torch_run.OfTensors(nn.Tanh(), x)(x).tolist() == x.tanh().tolist()
    rows = torch.tensor([1, 3])
    assert torch_run.part({"y": y, "n": 3, "z": torch.ones(2)}, rows, 4)["y"].tolist() == [1.0, 3.0]
    assert torch_run.part([torch.ones(2)], rows, 4)[0].tolist() == [1.0, 1.0]


def test_outputs_of_all_kinds_reach_the_loss() -> None:
    x = torch.arange(4.0)
    given = called(lambda x: {"empty": None, "y": x + 1.0, "others": [x.argmax(), "name"], "n": 3})
    model = torch_run.OfTensors(given, [x])
    y, place = tensors = model(x)
    assert (y.tolist(), place.item()) == ([1.0, 2.0, 3.0, 4.0], 3)
    assert model.output.whole(tensors) == {"empty": None, "y": y, "others": [place, "name"], "n": 3}
    model = torch_run.OfTensors(nn.Identity(), [x])
    assert model.output.whole(model(x)) is x


@pytest.mark.parametrize("form", ["{}:make", "{}:make(2)", "{}:make(depth=2)"])
def test_a_factory_is_found(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "makes.py"
    path.write_text("def make(depth=2, width=3):\n    return depth, width\n")
    made: Callable[..., Any] = torch_run.find(form.format(path))
    assert made(width=5) == (2, 5)
    assert torch_run.find_loss("mse_loss") is nn.functional.mse_loss
    assert torch_run.find_loss("sum")(torch.ones(3), "a target") == 3
    with pytest.raises(SystemExit, match="there is no file"):
        torch_run.find("nowhere.py:make")


def test_what_torch_detaches_in_place_is_a_copy() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    for made in (x.exp(), (x * 2).t()):  # the backward pass needs the first; the other is a view
        (given,) = torch_run.copied(nn.Identity(), (), (made,))
        value = given.sum()
        given.detach_()
        value.backward()
    assert x.grad.tolist() == (torch.ones(2, 3).exp() + 2).tolist()


def test_what_is_sent_is_contiguous() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    (given,) = torch_run.received(nn.Identity(), (x,))
    sent = []
    x.register_hook(sent.append)
    given.mul_(2.0)  # as a stage may that begins with nn.ReLU(inplace=True)
    given.t().square().t().contiguous().backward(torch.ones(3, 2).t())
    assert [gradient.is_contiguous() for gradient in sent] == [True]
    assert sent[0].tolist() == [[8.0] * 3] * 2
    numbers = torch.arange(6).view(2, 3).t()
    assert all(leaf.is_contiguous() for leaf in torch_run.copied(nn.Identity(), (), [numbers, given.t()]))
