"""A model is cut into stages that torch can run: each reads from the stage before it, and computes the same."""

import copy
import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Interpreter
from torch.utils._pytree import tree_flatten
from torch.utils.checkpoint import checkpoint

from placeto.formats.exports import torch_cut
from placeto.formats.exports.torch_run import OfTensors
from tests.captures import Made, linears
from tests.formats.torch_toys import OWN_GRADIENTS, WIDTH, chain

pytestmark = pytest.mark.filterwarnings("ignore")


def cut_at(paths: Sequence[str], model: nn.Module, inputs: Sequence[Any]) -> Any:
    """The model in stages, of which all but the first begin with a module."""
    plan = {"split_points": [[path, "beginning"] for path in paths]}
    return torch_cut.stages_of(OfTensors(model, inputs), inputs, plan)


def through(cut: Any, x: Tensor) -> Tensor:
    """The output of all stages; each takes one tensor, from the stage before."""
    for number in range(cut.num_stages):
        x = cut.get_stage_module(number)(x)
    return x


def assert_as_whole(model: Made, x: Tensor) -> None:
    """Cut before each layer but the first, it has the output and the gradients of the model as it is, to the bit."""
    whole = copy.deepcopy(model)
    cut = cut_at([f"layers.{number}" for number in range(1, len(model.layers))], model, [x])
    output, expected = through(cut, x), whole(x)
    assert torch.equal(output, expected)
    for value in (output, expected):
        value.square().sum().backward()
    gradients = [p.grad for number in range(cut.num_stages) for p in cut.get_stage_module(number).parameters()]
    assert all(map(torch.equal, gradients, [p.grad for p in whole.parameters()]))


def test_torch_is_told_that_what_is_sent_is_contiguous() -> None:
    class Turned(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).transpose(1, 2)

    x = torch.ones(2, 3, 3)
    cut = cut_at(["1"], nn.Sequential(Turned(3, 3), nn.Linear(3, 3)), [x])
    for stage, op in ((0, "output"), (1, "placeholder")):
        node = next(node for node in cut.get_stage_module(stage).graph.nodes if node.op == op)
        end = node.args[0] if op == "output" else node
        assert end.meta["val"].stride() == (9, 3, 1)


def test_inputs_that_nobody_reads_are_not_given_to_the_first_stage() -> None:
    class Two(nn.Sequential):
        def forward(self, mask: Tensor, x: Tensor) -> Tensor:
            return super().forward(x)

    given = [torch.zeros(2), torch.ones(2, 3)]
    cut = cut_at(["1"], Two(nn.Linear(3, 3), nn.Linear(3, 3)), given)
    assert torch_cut.taken_by(cut) == [1]
    cut.get_stage_module(0)(given[1])


def test_inputs_reach_the_first_stage_in_its_own_order() -> None:
    """torch gives them to it in the order in which ops read them."""

    def forward(model: Any, x: Tensor, unread: Tensor, scale: Tensor) -> Tensor:
        return model.layers(model.of_scale(scale) - x)

    model = Made(forward, of_scale=nn.Linear(8, 8), layers=linears(2, 8))
    given = [torch.rand(4, 8), torch.rand(4, 8), torch.rand(4, 8)]
    cut = cut_at(["layers.1"], copy.deepcopy(model), given)
    between = cut.get_stage_module(0)(*(given[place] for place in torch_cut.taken_by(cut)))
    assert torch.equal(cut.get_stage_module(1)(between), model(*given))


@pytest.mark.parametrize("stages", [1, 2])
def test_outputs_of_the_model_are_those_of_the_last_stage(stages: int) -> None:
    """Returned twice, in another order than they are made, and weights. Those of other stages are empty."""

    def forward(model: Any, x: Tensor) -> Any:
        between = model.layers[0](x)
        y = model.layers[1](between)
        sine, cosine = y.sin(), y.cos()
        return cosine, y, [sine, y], between, x, model.table, model.layers[0].bias

    model, x = Made(forward, layers=linears(2, 8), table=torch.rand(8)), torch.rand(4, 8)
    model.register_buffer("table", model.__dict__.pop("table"))
    cut = cut_at(["layers.1"][: stages - 1], copy.deepcopy(model), [x])
    made = through(cut, x)
    found, expected = [made[place] for place in torch_cut.made_by(cut)], tree_flatten(model(x))[0]
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        if stages == 2 and number in (4, 5):  # what the first stage makes, and the input
            assert not one.numel()
        else:
            assert torch.equal(one, other)


class Table(nn.Module):
    """A table of positions, computed within a region."""

    def __init__(self, region: Callable[[], Any], draws: bool = False) -> None:
        super().__init__()
        self.region, self.draws = region, draws
        self.register_buffer("frequencies", torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[0], dtype=x.dtype)[:, None]
        with self.region():
            table = (positions * self.frequencies).cos()
            return table + torch.rand(8) if self.draws else table


def reading_a_table(table: nn.Module, count: int = 4) -> Made:
    """Layers that all read a table, which is computed before the first of them."""

    def forward(model: Any, x: Tensor) -> Tensor:
        shared = model.table(x)
        for layer in model.layers:
            x = layer(x) * shared
        return x

    return Made(forward, table=table, layers=linears(count, 8))


@contextmanager
def in_both() -> Iterator[None]:
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        yield


@pytest.mark.parametrize("region", [nullcontext, torch.no_grad, lambda: torch.autocast("cpu", enabled=False), in_both])
def test_each_stage_computes_the_tables_that_it_reads(region: Callable[[], Any]) -> None:
    assert_as_whole(reading_a_table(Table(region)), torch.rand(4, 8))


def positions(x: Tensor) -> Tensor:
    """A table that is filled in place, part by part."""
    table, numbers = x.new_empty(len(x), 8), torch.arange(len(x)).type_as(x)[:, None]
    table[:, 0::2] = numbers.sin()
    table[:, 1::2].zero_().add_(numbers.cos())
    return table


def doubled(x: Tensor) -> Tensor:
    """A table that is changed where no gradient is computed."""
    table = torch.tensor([1.0, 2.0]).repeat(4).expand_as(x).clone()
    with torch.no_grad():
        table[1:].mul_(2)
    return table


TABLES: list[Callable[[Tensor], Tensor]] = [
    positions,
    doubled,
    lambda y: torch.full((len(y), 8), -1.0).triu_(1).exp_(),
    lambda y: torch.ones_like(y).cumsum(0).masked_fill_(torch.eye(len(y), 8).bool(), 0.5),
    lambda y: y.new_full((8,), 2.0),
    lambda y: torch.zeros(len(y), 8).view(-1).add_(1).view_as(y),
]


@pytest.mark.parametrize(("table", "late"), [*((table, False) for table in TABLES), (positions, True), (doubled, True)])
def test_tables_may_be_made_in_place_and_of_shapes(table: Callable[[Tensor], Tensor], late: bool) -> None:
    """By the shape of the model's input, or of what the first layer makes of it."""

    def forward(model: Any, x: Tensor) -> Tensor:
        shared = table(model.layers[0](x) if late else x)
        for layer in model.layers:
            x = layer(x * shared)
        return x

    assert_as_whole(Made(forward, layers=linears(4, 8)), torch.rand(4, 8))


def test_a_table_that_changes_is_in_each_stage_what_it_is_there() -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        table = torch.ones(4, 8)
        for layer in model.layers:
            x = layer(x) + table
            table.mul_(2)
        return x

    assert_as_whole(Made(forward, layers=linears(4, 8)), torch.rand(4, 8))


def test_no_gradient_flows_out_of_no_grad() -> None:
    class Scale(nn.Linear):
        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    model, x = Made(lambda self, x: self.last(self.first(x) * self.scale(x)), first=nn.Linear(8, 8)), torch.rand(4, 8)
    model.add_module("scale", Scale(8, 8))
    model.add_module("last", nn.Linear(8, 8))
    cut = cut_at(["last"], model, [x])
    through(cut, x).sum().backward()
    got = {name.removeprefix("model."): p.grad is not None for name, p in cut.get_stage_module(0).named_parameters()}
    assert got == {"first.weight": True, "first.bias": True, "scale.weight": False, "scale.bias": False}


@pytest.mark.parametrize("change", [lambda y: y.add_(1), lambda y: y[0].zero_(), lambda y: y.chunk(2)[1].mul_(2)])
def test_activations_that_change_within_no_grad_are_refused(change: Callable[[Tensor], Tensor]) -> None:
    """The layers before it would get no gradient. A buffer may change there."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.first(x)
        with torch.no_grad():
            change(y if self.of_activation else self.mean)
        return self.last(y)  # type: ignore[no-any-return]

    for of_activation in (True, False):
        model = Made(forward, first=nn.Linear(8, 8), last=nn.Linear(8, 8))
        model.register_buffer("mean", torch.ones(4, 8))
        model.of_activation = of_activation
        if not of_activation:
            cut_at(["last"], model, [torch.rand(4, 8)])
            continue
        with pytest.raises(SystemExit, match=r"a change of an activation in torch.no_grad\(\) within"):
            cut_at(["last"], model, [torch.rand(4, 8)])


def test_what_torch_cannot_send_is_refused() -> None:
    x = torch.rand(4, 8)
    places = [f"layers.{number}" for number in (1, 2, 3)]
    for table in (Table(nullcontext, draws=True), nn.Linear(8, 8)):
        with pytest.raises(SystemExit, match=r"error: stage 2 reads \w+, which torch doesn't send to it: use fewer"):
            cut_at(places, reading_a_table(table), [x])
    with pytest.raises(SystemExit, match=r"error: table: torch can't trace torch.autocast\(\) within the forward pass"):
        cut_at(places[:1], reading_a_table(Table(lambda: torch.autocast("cpu", torch.bfloat16))), [x])


def test_stages_run_without_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    def interpreted(self: Interpreter, *_: Any, **__: Any) -> None:
        raise AssertionError(f"{self.graph} is gone through node by node")

    model, x = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)), torch.randn(4, 8)
    cut = cut_at(["2"], model, [x])
    for number in range(2):
        torch_cut.compiled(cut.get_stage_module(number), torch.device("cpu"))
    monkeypatch.setattr(Interpreter, "run", interpreted)
    assert torch.equal(through(cut, x), copy.deepcopy(model).train()(x))


def test_a_module_may_be_called_self() -> None:
    def attention() -> nn.Module:
        made = Made(lambda self, x: x + self.output(self.get_submodule("self")(x)), output=nn.Linear(8, 8))
        made.add_module("self", nn.Linear(8, 8))
        return made

    model, x = nn.Sequential(attention(), attention()), torch.randn(4, 8)
    cut = cut_at(["1"], model, [x])
    for number in range(2):
        torch_cut.compiled(cut.get_stage_module(number), torch.device("cpu"))
    assert torch.equal(through(cut, x), model(x))


def test_tables_are_made_on_the_device_of_the_stage() -> None:
    class Moved(Table):
        def forward(self, x: Tensor) -> Tensor:
            positions = torch.arange(x.shape[0], dtype=x.dtype, device=x.device)[:, None]
            return positions * self.frequencies.to(x.device, torch.float64).float()

    cut = cut_at(["layers.1"], reading_a_table(Moved(nullcontext), 2), [torch.rand(4, 8)])
    for number in range(2):
        stage = cut.get_stage_module(number).to("meta")
        torch_cut.compiled(stage, torch.device("meta"))
        assert stage(torch.rand(4, 8, device="meta")).device.type == "meta"


def nested(layer: nn.Module, x: Tensor) -> Any:
    return checkpoint(lambda y: checkpoint(layer, y, use_reentrant=False).tanh(), x, use_reentrant=False)


def saved_elsewhere(layer: nn.Module, x: Tensor) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return layer(x)


CHECKPOINTS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "reentrant": lambda layer, x: checkpoint(layer, x, use_reentrant=True),
    "not reentrant": lambda layer, x: checkpoint(layer, x, use_reentrant=False),
    "nested": nested,
    "saved elsewhere": saved_elsewhere,
}


@pytest.mark.parametrize("kept", CHECKPOINTS)
def test_checkpoints_of_the_model_itself_keep_its_gradients(kept: str) -> None:
    """They are left out: torch would trace what they run as if it had no gradients."""
    kept_by = CHECKPOINTS[kept]
    layers = [Made(lambda module, x: kept_by(module.layer, x), layer=nn.Linear(8, 8)) for _ in range(3)]
    model = Made(
        lambda module, x: functools.reduce(lambda y, layer: layer(y), module.layers, x), layers=nn.ModuleList(layers)
    )
    assert_as_whole(model, torch.rand(4, 8, requires_grad=True))


@OWN_GRADIENTS
def test_what_makes_gradients_of_its_own_is_refused(layer: Callable[[], nn.Module], what: str) -> None:
    """torch would train the stages without these gradients, and say nothing."""
    model, own = chain(), vars(torch.autograd.Function)["apply"]
    model[1] = layer()
    with pytest.raises(SystemExit, match=f"error: {what} makes gradients of its own, .* or run replicas"):
        cut_at(["2"], model, [torch.rand(4, WIDTH)])
    assert vars(torch.autograd.Function)["apply"] is own


def test_stages_run_the_recomputed_blocks_twice_and_keep_their_inputs_alone() -> None:
    parts = [(nn.Linear(8, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 8)) for _ in range(4)]
    model = nn.Sequential(*(nn.Sequential(*block) for block in parts))
    x, plan = torch.rand(4, 8), {"split_points": [["2", "beginning"]], "recomputed": ["0", "2"]}
    cut = torch_cut.stages_of(OfTensors(copy.deepcopy(model), [x]), [x], plan)
    runs, made, value = Counter[str](), dict[str, Any](), x
    for stage in (cut.get_stage_module(0), cut.get_stage_module(1)):
        torch_cut.compiled(stage, torch.device("cpu"))
        torch_cut.recomputing(block for path, block in stage.named_modules() if path in ("model.0", "model.2"))
        for path, module in stage.named_modules():
            if path.endswith(".1") and path != "model.1":  # the Tanh of a block, whose result is saved

                def count(module: nn.Module, inputs: Any, output: Tensor, path: str = path) -> None:
                    runs[path] += 1
                    made[path] = weakref.ref(output)

                module.register_forward_hook(count)
        value = stage(value)
    assert runs == dict.fromkeys([f"model.{block}.1" for block in range(4)], 1)
    assert [path for path in made if made[path]() is None] == ["model.0.1", "model.2.1"]
    value.square().sum().backward()
    assert runs == {"model.0.1": 2, "model.1.1": 1, "model.2.1": 2, "model.3.1": 1}
    model(x).square().sum().backward()
    found = dict(cut.split_gm.named_parameters())
    for path, parameter in model.named_parameters():
        (mine,) = [found[name] for name in found if name.endswith(f"model.{path}")]
        assert torch.equal(mine.grad, parameter.grad)
    statistics = dict(cut.split_gm.named_buffers())
    for path, buffer in model.named_buffers():
        assert all(torch.equal(statistics[name], buffer) for name in statistics if name.endswith(f"model.{path}")), path


def test_a_list_of_modules_cannot_be_recomputed() -> None:
    blocks = nn.ModuleList(nn.ModuleDict({"one": nn.Linear(8, 8), "two": nn.Linear(8, 8)}) for _ in range(2))

    def forward(made: Any, x: Tensor) -> Tensor:
        for block in made.blocks:
            x = block["two"](block["one"](x).tanh())
        return x

    plan = {"split_points": [["blocks.1.one", "beginning"]], "recomputed": ["blocks.0"]}
    with pytest.raises(SystemExit, match=r"blocks\.0 can't be recomputed, as it has no forward pass"):
        torch_cut.stages_of(OfTensors(Made(forward, blocks=blocks), [torch.rand(4, 8)]), [torch.rand(4, 8)], plan)
