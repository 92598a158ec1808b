"""Arguments and outputs that are objects holding tensors: read at each call, changed and returned as in eager."""

import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placeto.errors import CaptureError, RunError
from tests.captures import Made, square
from tests.runtime.true import step_of


class Box:
    def __init__(self, inside: Any) -> None:
        self.inside = inside


@dataclass(frozen=True, slots=True)
class Pair:
    one: Tensor
    other: Any
    number: float = 2.0


class Cache:
    """Grows as those of language models do."""

    def __init__(self) -> None:
        self.layers: list[Box] = []

    def add(self, keys: Tensor) -> Tensor:
        if not self.layers:
            self.layers.append(Box(keys))
        else:
            self.layers[0].inside = torch.cat([self.layers[0].inside, keys])
        return self.layers[0].inside


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, given: Any) -> Any:
        if isinstance(given, Box):
            return self.layer(x) + self.layer(given.inside)
        if isinstance(given, Pair):
            return self.layer(x) * given.one + given.other.inside * given.number
        if isinstance(given, dict):
            given["seen"] = given["seen"] + self.layer(x)
            given.pop("old", None)
            return given["seen"].sum()
        if isinstance(given, np.ndarray):
            return self.layer(x) * float(given[0])
        seen = given.add(self.layer(x))
        return {"sum": seen.sum(0), "cache": given, "made": Pair(seen, "text")}


def box(seed: int) -> Box:
    return Box(torch.randn(2, 4, generator=torch.Generator().manual_seed(seed)))


def pair(seed: int) -> Pair:
    inside = box(seed)
    return Pair(inside.inside + 1, inside)


@pytest.mark.parametrize("make", [box, pair])
@pytest.mark.parametrize("train", [True, False])
def test_tensors_in_objects_are_read_at_each_call(make: Any, train: bool) -> None:
    module, x = Reader(), torch.randn(2, 4)
    given = make(0)
    step = step_of(module, [x, given], **({"loss": square} if train else {}))
    assert type(given) is type(make(0))
    for seed in (0, 1, 2):
        wanted = module(x, make(seed))
        assert torch.equal(step(x, make(seed)), (square(wanted) if train else wanted).detach())
    with pytest.raises(RunError, match="nested in another way, or dicts with their keys in another order"):
        step(x, "no box")
    if make is pair:
        one = make(0)
        with pytest.raises(RunError, match=r"was captured with 2\.0 as value 3 .*, not 3\.0"):
            step(x, Pair(one.one, one.other, 3.0))


def filled(seed: int, count: int) -> Cache:
    cache = Cache()
    for k in range(count):
        cache.add(box(seed + k).inside)
    return cache


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_cache_grows_as_in_eager(count: int) -> None:
    module, x = Reader(), torch.randn(2, 4)
    given = filled(0, count)
    step = step_of(module, [x, given], training=False)
    assert len(given.layers) == min(count, 1)
    for seed in (5, 9):
        mine, its = filled(seed, count), filled(seed, count)
        made = step(x, mine)
        with torch.no_grad():
            wanted = module(x, its)
        assert torch.equal(made["sum"], wanted["sum"])
        assert made["cache"] is mine
        assert torch.equal(mine.layers[0].inside, its.layers[0].inside)
        assert made["made"].other == "text"
        assert torch.equal(made["made"].one, wanted["made"].one)
    with pytest.raises(RunError, match="captured with"):
        step(x, filled(0, count + 1))


@pytest.mark.parametrize("train", [True, False])
def test_a_dict_is_changed_as_in_eager(train: bool) -> None:
    module, x = Reader(), torch.randn(2, 4)
    step = step_of(module, [x, {"seen": torch.zeros(2, 4), "old": 1}], **({"loss": square} if train else {}))
    mine: dict[str, Any] = {"seen": torch.ones(2, 4), "old": 1}
    its = copy.deepcopy(mine)
    step(x, mine)
    module(x, its)
    assert mine.keys() == its.keys()
    assert torch.equal(mine["seen"], its["seen"])


class Record(dict[str, Any]):
    """A dict whose values are read as attributes."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Row(list[Any]):
    @property
    def x(self) -> Any:
        return self[0]


class Own:
    def __new__(cls, x: Tensor) -> "Own":
        return super().__new__(cls)

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Doubles(nn.Linear):
    def forward(self, given: Any) -> Tensor:
        if isinstance(given, Record):
            given.reads += 1
            given["y"] = given["x"] * 2
            return super().forward(given["y"])
        return super().forward(given.x * 2)


@pytest.mark.parametrize("make", [lambda x: SimpleNamespace(x=x), lambda x: Record(x=x, y=None), lambda x: Row([x])])
def test_kinds_of_lists_and_dicts_are_read_and_changed(make: Any) -> None:
    module = Doubles(64, 4)
    first, second = torch.zeros(64, 64), torch.zeros(64, 64)
    second[30, 30] = 1.0  # where no text shows it
    given, mine, its = make(first), make(second), make(second)
    step = step_of(module, [given], training=False)
    assert torch.equal(step(mine), module(its))
    if isinstance(mine, Record):
        assert mine.reads == its.reads == 1
        assert torch.equal(mine["y"], its["y"])
        assert list(given.values()) == [first, None]
    elif isinstance(mine, SimpleNamespace):
        given.x = second
        assert torch.equal(step(given), module(its))


def test_tensors_that_can_not_be_seen_are_refused() -> None:
    for hidden, kind in ((Own(torch.ones(2, 4)), "Own"), ({torch.ones(2, 4)}, "set")):
        with pytest.raises(CaptureError, match=f"an argument has a {kind} with tensors, which can't be seen there"):
            step_of(Doubles(4, 4), [hidden], training=False)


def test_arrays_are_compared_by_all_their_values() -> None:
    module, x = Reader(), torch.randn(2, 4)
    array = np.arange(1.0, 5000.0)
    step = step_of(module, [x, array])
    step(x, array.copy())
    array[2500] = 7
    with pytest.raises(RunError, match="was captured with an array"):
        step(x, array)


def test_packed_sequences_and_micro_batches() -> None:
    module: Any = Made(lambda self, given: self.layer(given.data), layer=nn.Linear(4, 4))
    made = [nn.utils.rnn.pack_sequence([torch.randn(3, 4), torch.randn(2, 4)]) for _ in range(2)]
    step = step_of(module, [made[0]])
    for given in made:
        assert torch.equal(step(given), module(given).detach())
    with pytest.raises(CaptureError, match="Reader: tensors in a Box can't be split into micro-batches"):
        step_of(Reader(), [torch.ones(2, 4), box(0)], loss=square, micro_batches=2)


def test_objects_of_micro_batches_are_joined() -> None:
    module = Made(lambda self, x: Box({"y": self.layer(x)}), layer=nn.Linear(4, 4))
    x = torch.randn(4, 4)
    made = step_of(module, [x], training=False, micro_batches=2)(x)
    assert torch.allclose(made.inside["y"], module(x).inside["y"])
