"""The table of efficiencies is fitted to ops."""

import dataclasses
import gzip
from pathlib import Path

import numpy as np
import pytest

from experiments.fit_efficiency import (
    PRODUCTS,
    FitEfficiency,
    Op,
    constant_of,
    entries,
    fit,
    held_out_error,
    main,
    read_ops,
)
from placeto.problem.costs import load_costs
from placeto.problem.costs.efficiency import Efficiency


def ops(device: str = "v100", source: str = "DeepBench", compute: float = 0.6, count: int = 60) -> list[Op]:
    """Ops that take 5 us + max(computing / (compute * r^0.2), accessing / 0.8), bound by one or the other."""
    random = np.random.default_rng(0)
    made = []
    for _ in range(count):
        memory, ratio = float(np.exp(random.uniform(0, 6))), float(np.exp(random.uniform(-2, 3)))
        us = 5.0 + max(memory * ratio / (compute * ratio**0.2), memory / 0.8)
        made.append(Op(source, device, "float32", "matmul", memory * ratio, memory, 0.0, us))
    return made


def test_known_factors_are_found_again() -> None:
    found = fit(ops(), 0.6)
    assert np.exp([found.compute, found.memory]) == pytest.approx([0.6, 0.8], rel=0.05)
    assert found.slope == pytest.approx(0.2, abs=0.03)
    assert found.fixed_us == pytest.approx(5.0, rel=0.05)
    assert held_out_error(ops(), lambda some: fit(some, 0.6)) < 0.02


def test_the_constant_is_the_same_for_every_device_of_many_rows_or_few() -> None:
    def made(device: str, share: float, count: int) -> list[Op]:
        return [Op("Vidur", device, "float32", "matmul", 60.0, 1.0, 0.0, 60.0 / share)] * count

    assert constant_of([*made("a", 0.5, 1000), *made("b", 0.6, 10), *made("c", 0.8, 10)]) == pytest.approx(0.6)


def test_entries_of_devices_and_their_mean() -> None:
    made = [*ops("p100", compute=0.4), *ops("v100", compute=0.6), *ops("t4", count=7)]
    first, second, mean = entries(made, 0.6)
    assert [first["device"], second["device"], mean["device"]] == ["p100", "v100", "*"]
    assert mean["devices"] == ["p100", "v100"], "seven rows make no entry"
    assert mean["compute"] == pytest.approx(np.sqrt(first["compute"] * second["compute"]), abs=1e-3)
    assert first["roofline_error"] > 0.3 > 0.05 > first["held_out_error"]


def test_boards_with_large_products_have_the_mean_scaled_to_them() -> None:
    half = [dataclasses.replace(op, dtype="float16") for op in ops()]
    boards = {entry["device"]: entry for entry in entries(half, 0.6)}
    product = next(product for product in PRODUCTS if product.kind == "rtx4090" and product.n == 8192)
    assert set(boards) == {"v100", "*", "rtx3090", "rtx4090"}
    entry = boards["rtx4090"]
    assert entry["memory"] == boards["*"]["memory"]
    assert entry["compute"] > boards["*"]["compute"]
    share = (
        entry["compute"] * min(product.op().compute_us / product.op().memory_us, entry["ratios"][1]) ** entry["slope"]
    )
    assert share == pytest.approx(product.rate / product.peak, rel=0.1)


def test_the_projects_own_ops_are_read_with_layouts_and_aligned_products(tmp_path: Path) -> None:
    (tmp_path / "op_times.csv.gz").write_bytes(gzip.compress(b"source,device\n"))
    found = read_ops(tmp_path)
    assert {(op.source, op.device) for op in found} == {("Placeto", "h200")}
    assert {"float32", "tf32", "float16", "*"} == {op.dtype for op in found}
    kinds = {op.kind for op in found}
    assert {"channels_last_convolution_backward", "convolution", "attention"} <= kinds
    assert kinds.isdisjoint({"recurrent", "gather"})
    products = [op for op in found if op.kind == "matmul" and op.dtype == "float16" and op.roofline_us > 100]
    assert min(op.roofline_us / op.us for op in products) > 0.4, "sizes that aren't multiples of 8 reach 0.1"
    assert not any("h200" in entry.get("devices", ()) for entry in entries(found, 0.6, errors=False))


@pytest.mark.slow
def test_the_command_writes_what_costs_read(tmp_path: Path) -> None:
    head = "source,device,dtype,kind,op,phase,flops,bytes,us,floor,shape,model"
    rows = [
        f"Vidur,A100-80P,fp16tc,matmul,mlp_up_proj,fwd,{op.compute_us * 312e6},{op.memory_us * 1935e3},{op.us},2,x,y"
        for op in ops()
    ]
    with gzip.open(tmp_path / "op_times.csv.gz", "wt") as file:
        file.write("\n".join([head, *rows]) + "\n")
    main(dataclasses.replace(FitEfficiency(), data=tmp_path, table=tmp_path / "table.json"))
    table = load_costs(tmp_path / "table.json")
    assert isinstance(table, Efficiency)
    factors = table.entries["a100", "float16", "matmul"]
    assert factors.compute == pytest.approx(0.6, rel=0.05)
    assert factors.fixed_us == pytest.approx(5.0, rel=0.05)
