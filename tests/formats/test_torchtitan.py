"""torchtitan is told of whole layers on ranks as it counts them, in an order that torch reads."""

import csv
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn

from placeto.errors import PlacementError
from placeto.formats.exports.torchtitan import save_torchtitan, torchtitan
from tests.captures import Made
from tests.formats.test_torch_orders import _read, runtime  # noqa: F401
from tests.formats.test_whole_layers import TRAINING, cut
from tests.formats.torch_toys import WIDTH, captured, chain, planned

GRAPH = captured(chain(8))
PLANS = {
    "straight": [(0,), (1,)],
    "replicas": [(0, 1), (2, 3)],
    "interleaved": [(1,), (0,), (1,), (0,)],
    "back": [(0,), (1,), (1,), (0,)],
    "back over three": [(0,), (1,), (2,), (2,), (1,), (0,)],
}


def stages_of(rank: int, size: int, count: int, schedule: str) -> list[int]:
    """torchtitan's rule: in turns, or with two stages a rank for a schedule of zero bubbles, back."""
    if schedule == "ZBVZeroBubble":
        assert count == 2 * size
        return [rank, count - 1 - rank]
    return list(range(rank, count, size))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.usefixtures("runtime")
def test_each_rank_runs_the_stages_that_it_has(plan: str, tmp_path: Path) -> None:
    made = torchtitan(planned(GRAPH, PLANS[plan]))
    save_torchtitan(made, tmp_path / "out", 32)
    sections = "parallelism", "training", "activation_checkpoint"
    config = SimpleNamespace(**{section: SimpleNamespace() for section in sections})
    assert runpy.run_path(str(tmp_path / "out" / "parallelism.py"))["placed"](config) is config
    assert ("CUDA_VISIBLE_DEVICES=1,0" in (tmp_path / "out" / "parallelism.py").read_text()) == (plan == "interleaved")
    told, replicas = config.parallelism, len(made.layers.plan.replicas)
    path = Path(told.pipeline_parallel_schedule_csv)
    rows = list(csv.reader(path.read_text().splitlines()))
    parts, size = told.module_fqns_per_model_part, told.pipeline_parallel_degree
    assert (len(rows), told.data_parallel_replicate_degree) == (size, replicas)
    assert [name for part in parts for name in part][1:-2] == [f"layers.{number}" for number in range(8)]
    assert (parts[0][0], parts[-1][-2:]) == ("tok_embeddings", ["norm", "lm_head"])
    assert config.training.global_batch_size == 32 == config.training.local_batch_size * replicas
    count = config.training.local_batch_size // told.pipeline_parallel_microbatch_size
    for rank, row in enumerate(rows):
        own = stages_of(rank, size, len(parts), told.pipeline_parallel_schedule)
        assert sorted({int(cell[: -len(cell.lstrip("0123456789"))]) for cell in row}) == own
        wanted = {f"{stage}{kind}{of}" for stage in own for kind in ("FIW" if stage else "FB") for of in range(count)}
        assert sorted(row) == sorted(wanted)
    read = _read(path, size, len(parts), count)
    assert read is not None  # torch finds an order of all chunks and transfers in which nobody waits for ever
    for replica, row in enumerate(made.layers.plan.replicas):
        for stage, device in enumerate(row):
            (rank,) = (
                rank
                for rank in range(size)
                if stage in stages_of(rank, size, len(parts), told.pipeline_parallel_schedule)
            )
            assert made.ranks[rank * replicas + replica] == device


def test_replicas_run_one_order() -> None:
    made = torchtitan(planned(GRAPH, PLANS["replicas"]))
    chunks = made.pipeline.order.plan.chunks
    for one, other in ((0, 1), (2, 3)):
        assert [chunk[:2] for chunk in chunks[one]] == [chunk[:2] for chunk in chunks[other]]
        assert [chunk[2] + 1 for chunk in chunks[one]] == [chunk[2] for chunk in chunks[other]]


def test_modules_keep_their_names_if_the_model_itself_has_the_layers() -> None:
    parts = {"first": nn.Linear(WIDTH, WIDTH), "layers": chain(6), "head": nn.Linear(WIDTH, WIDTH)}
    flat = Made(lambda self, x: self.head(self.layers(self.first(x))), **parts)
    made = torchtitan(planned(captured(flat), [(0,), (1,)]))
    assert not made.renamed
    assert made.modules == (("first", "layers.0", "layers.1", "layers.2"), ("layers.3", "layers.4", "layers.5", "head"))
    made = torchtitan(cut(TRAINING, [0, 1], ["body.h.3"]))
    assert made.renamed
    assert made.modules == (
        ("tok_embeddings", "layers.0", "layers.1", "layers.2"),
        ("layers.3", "layers.4", "layers.5", "norm", "lm_head"),
    )


@pytest.mark.parametrize(
    ("devices", "told"),
    [
        ([(0,), (1,), (2,), (0,)], "or once back, as those of torchtitan do: plan with --runnable-by torchtitan"),
        ([(0, 1)], "has one stage, .* set its data_parallel_replicate_degree to 2"),
    ],
)
def test_what_torchtitan_does_not_run_is_refused(devices: list[tuple[int, ...]], told: str) -> None:
    with pytest.raises(PlacementError, match=told):
        torchtitan(planned(GRAPH, devices))
