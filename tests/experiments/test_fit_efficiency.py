"""The table of efficiencies is fitted to ops."""

import dataclasses
import gzip
from pathlib import Path

import numpy as np
import pytest

from experiments.fit_efficiency import FitEfficiency, Op, entries, fit, held_out_error, main, read_ops
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
