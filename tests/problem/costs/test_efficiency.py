"""Op times from what devices make of their datasheets."""

import json
import pickle
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeto.errors import CostsError
from placeto.problem.cluster import Device
from placeto.problem.cluster.boards import A100, CPU, H200, P100, T4, V100
from placeto.problem.costs import EFFICIENCY, ROOFLINE, load_costs
from placeto.problem.costs.efficiency import ANY, Efficiency, Factors, op_kind
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from tests.toys import linked

TABLE = Efficiency(
    {
        ("v100", "float32", "matmul"): Factors(0.5, 0.8, 7.0),
        ("v100", ANY, "elementwise"): Factors(1.0, 0.5, 3.0),
        (ANY, "float32", "matmul"): Factors(0.4, 0.8, 7.0),
        (ANY, "float16", "matmul"): Factors(0.25, 0.8, 7.0),
        ("p100", "float32", "batched_matmul"): Factors(0.5, 1.0, 0.0, slope=0.5, least=1.0, most=16.0),
    },
    same={"v100s": "v100"},
    constant=0.2,
    constants={"k80": 0.1},
)


def times(device: Device, *ops: dict[str, Any], costs: Efficiency = TABLE) -> list[float]:
    """Microseconds of ops on a device."""
    graph = ComputationGraph.from_ops("g", [{"name": f"o{i}", **op} for i, op in enumerate(ops)])
    return costs.op_time_us(graph, linked([device]))[:, 0].tolist()


def device(kind: str, overhead_us: float = 0.0) -> Device:
    """1e6 FLOP/us in float32, 8e6 in float16, 1e3 bytes/us."""
    return Device(kind, kind, {"float32": 1e12, "float16": 8e12}, 1e9, 10**9, overhead_us)


MM = {"type": "aten.mm", "flops": 100e6}
ADD = {"type": "aten.add", "bytes_accessed": 1e5}


def test_time_in_closed_form() -> None:
    assert times(device("v100"), MM, ADD) == pytest.approx([100 / 0.5 + 7, 100 / 0.5 + 3])
    assert times(device("v100", 5.0), MM, ADD) == pytest.approx([200 + 2, 200 + 0]), "the overhead is part of the fixed"
    memory_bound = {**MM, "bytes_accessed": 4e5}
    assert times(device("v100"), memory_bound) == pytest.approx([400 / 0.8 + 7])
    assert times(device("v100"), {"type": "aten.view"}) == [0.0], "what does nothing takes no time, fixed or not"


def test_of_a_chip_with_two_boards_each_has_its_own_entries_first() -> None:
    entries = {("a", "float32", "matmul"): Factors(0.5, 0.8, 7.0), ("b", ANY, "elementwise"): Factors(1.0, 0.5, 3.0)}
    both = Efficiency(entries, {"a": "b", "b": "a"}, 0.2, {})
    for kind in ("a", "b"):
        assert times(device(kind), MM, ADD, costs=both) == pytest.approx([100 / 0.5 + 7, 100 / 0.5 + 3])
    more = Efficiency(entries | {("b", "float32", "matmul"): Factors(0.25, 0.8, 0.0)}, both.same, 0.2, {})
    assert times(device("a"), MM, costs=more) + times(device("b"), MM, costs=more) == pytest.approx([207, 400])


def test_a_convolution_with_channels_innermost_has_an_entry_of_its_own() -> None:
    last = {"type": "aten.convolution", "flops": 800e6, "dtype": "float16", "kernel": "channels_last"}
    key = ("a", "float16", "convolution")
    table = Efficiency({key: Factors(0.5, 1.0, 0.0)}, {}, 0.2, {})
    assert times(device("a"), last, costs=table) == pytest.approx([200.0]), "else it is as another layout's"
    table = Efficiency({**table.entries, (*key[:2], "channels_last_convolution"): Factors(0.8, 1.0, 0.0)}, {}, 0.2, {})
    first = {**last, "kernel": ""}
    assert times(device("a"), last, first, costs=table) == pytest.approx([125.0, 200.0])


def test_where_nothing_is_measured() -> None:
    half = {**MM, "dtype": "bfloat16"}
    assert times(device("v100s"), MM) == times(device("v100"), MM), "the same chip"
    assert times(device("v100*0.5"), MM) == times(device("v100"), MM), "the same kind at another speed"
    assert times(device("p100"), MM) == pytest.approx([100 / 0.4 + 7]), "the mean of other devices"
    assert times(device("v100"), half) == pytest.approx([100 / 8 / 0.25 + 7]), "a dtype measured on others"
    assert times(device("new"), MM, half) == pytest.approx([100 / 0.4 + 7, 100 / 8 / 0.25 + 7]), "the means"
    for op in (MM, half, {**MM, "type": "mine"}):
        peak = 8 if op is half else 1
        assert times(device("cpu-new"), op) == pytest.approx([100 / peak / 0.2]), "the constant"
        assert times(device("k80"), op) == pytest.approx([100 / peak / 0.1]), "its own"
    assert times(device("new"), {**MM, "type": "mine"}) == pytest.approx([100 / 0.2])
    assert times(device("v100"), {**MM, "type": "mine"}) == pytest.approx([100 / 0.2])
    assert times(device("v100"), {"type": "aten._softmax", "bytes_accessed": 1e5}) == pytest.approx([100 / 0.2])


def test_a_backward_pass_without_an_entry_has_those_of_the_forward_pass() -> None:
    pool = Efficiency({("v100", ANY, "max_pool"): Factors(1.0, 0.5, 3.0)}, {}, 0.2, {})
    op = {"type": "aten.max_pool2d_with_indices", "bytes_accessed": 1e5}
    backward = {**op, "type": f"{op['type']}_backward"}
    assert times(device("v100"), op, backward, costs=pool) == pytest.approx([203.0, 203.0])


def test_reuse_computes_better_within_what_was_measured() -> None:
    ratios = {1: 1.0, 4: 2.0, 16: 4.0, 64: 4.0, 0.25: 1.0}  # computing to accessing -> times the efficiency
    for ratio, better in ratios.items():
        op = {"type": "aten.bmm", "flops": 100e6, "bytes_accessed": 1e5 / ratio}
        expected = max(100 / (0.5 * better), 100 / ratio)
        assert times(device("p100"), op) == pytest.approx([expected])
    assert times(device("p100"), {"type": "aten.bmm", "flops": 100e6}) == pytest.approx([100 / 2])


@pytest.mark.parametrize(
    ("op_type", "kernel", "kind"),
    [
        ("aten.convolution_backward", "", "convolution_backward"),
        ("aten.convolution", "grouped", "grouped_convolution"),
        ("aten.convolution_backward", "depthwise", "depthwise_convolution_backward"),
        ("aten.convolution_backward", "grouped_channels_last", "grouped_convolution_backward"),
        ("aten.mul", "dropout", "elementwise"),
        ("aten._safe_softmax", "", "softmax"),
        ("aten.baddbmm", "", "batched_matmul"),
        ("aten._scaled_dot_product_flash_attention_for_cpu_backward", "", "attention"),
        ("aten._cudnn_rnn_backward", "", "recurrent"),
        ("graphs.lstm_cell", "", "elementwise"),
        ("aten.native_batch_norm_backward", "", "batch_norm_backward"),
        ("aten.native_layer_norm", "", "layer_norm"),
        ("aten._log_softmax_backward_data", "", "softmax_backward"),
        ("aten.max_pool2d_with_indices_backward", "", "max_pool_backward"),
        ("aten._adaptive_avg_pool2d", "", "avg_pool"),
        ("aten.embedding_dense_backward", "", "gather"),
        ("aten.threshold_backward", "", "elementwise"),
        ("aten._native_multi_head_attention", "", "matmul"),
        ("aten.addbmm", "", "matmul"),
        ("onnx.FusedGemm", "", "matmul"),
        ("onnx.MatMulNBits", "", "matmul"),
        ("onnx.DynamicQuantizeMatMul", "", "matmul"),
        ("onnx.MultiHeadAttention", "", "attention"),
        ("onnx.DynamicQuantizeLSTM", "", "recurrent"),
        ("onnx.SkipSimplifiedLayerNormalization", "", "layer_norm"),
        ("onnx.LogSoftmax", "", "softmax"),
        ("onnx.RotaryEmbedding", "", "elementwise"),
        ("Conv2d", "", ""),
    ],
)
def test_kinds_of_ops(op_type: str, kernel: str, kind: str) -> None:
    assert op_kind(op_type, kernel) == kind


@pytest.mark.parametrize(
    "op_type",
    ["aten.", "onnx.", "aten.a b", "aten.a-b", "aten._backward", "aten.\x1b"]
    + [f"aten.{word * 14_000}-" for word in ("_native", "native_", "attention", "_", "batchnorm", "softmax", "index")],
    ids=lambda op_type: op_type[:20],
)
def test_types_that_are_no_words_are_unknown_at_once(op_type: str) -> None:
    begin = time.process_time()
    assert op_kind(op_type) == ""
    assert times(V100, {"type": op_type, "flops": 1e9})[0] > 0
    assert time.process_time() - begin < 2


def test_the_table_of_the_package() -> None:
    assert EFFICIENCY.name.startswith("efficiency ")
    assert 0.4 < EFFICIENCY.constant < 0.8
    assert {"p100", "v100", "a100", "h100", "t4"} <= EFFICIENCY.devices
    for (_, _, kind), factors in EFFICIENCY.entries.items():
        assert 0 < factors.memory <= 1.05
        assert 0 < factors.compute * factors.most**factors.slope < 2.3, "of Winograd's algorithm, 2.25"
        assert kind in {op_kind(f"aten.{kind}")} or kind.endswith(("_backward", "matmul", "convolution"))


def test_a_device_is_never_much_faster_than_its_roofline() -> None:
    """Nor slower by more than what the worst measured kind is."""
    kinds = ("mm", "bmm", "convolution", "convolution_backward", "_softmax", "native_layer_norm", "add", "embedding")
    ops = [
        {
            "type": f"aten.{kind}",
            "flops": flops * ("conv" in kind or "mm" in kind),
            "bytes_accessed": 1e8,
            "dtype": dtype,
        }
        for kind in kinds
        for flops in (1e9, 1e11)
        for dtype in ("float32", "tf32", "bfloat16", "float16")
    ]
    for board in (P100, V100, A100, H200, T4, CPU):
        found = np.array(times(board, *ops, costs=EFFICIENCY))
        graph = ComputationGraph.from_ops("g", [{"name": f"o{i}", **op} for i, op in enumerate(ops)])
        ratio = found / ROOFLINE.op_time_us(graph, linked([board]))[:, 0]
        assert ratio.min() > 0.44
        assert ratio.max() < 8.0


@pytest.mark.parametrize("kind", ["aten.mm", "aten.convolution"])
def test_tf32_is_float32_where_a_device_has_none(kind: str) -> None:
    op = {"type": kind, "bytes_accessed": 3e6, "flops": 1e10}
    for board in (P100, V100, T4):
        assert times(board, {**op, "dtype": "tf32"}, costs=EFFICIENCY) == times(board, op, costs=EFFICIENCY)
    assert times(A100, {**op, "dtype": "tf32"}, costs=EFFICIENCY) < times(A100, op, costs=EFFICIENCY)


BOARD = Device("new", "new", {"float32": 1e12, "tf32": 4e12, "float16": 8e12}, 1e9, 10**9)  # with tensor cores
CORES = Efficiency(
    {
        (ANY, "float32", "matmul"): Factors(0.5, 1.0, 0.0),
        (ANY, "float16", "matmul"): Factors(0.25, 0.5, 0.0),
        (ANY, "float32", "convolution"): Factors(0.5, 1.0, 0.0),
        (ANY, "float32", "grouped_convolution"): Factors(0.05, 0.5, 0.0),
        (ANY, "float32", "batched_matmul"): Factors(0.1, 1.0, 0.0),
        (ANY, "float32", "depthwise_convolution"): Factors(0.1, 0.2, 0.0),
        (ANY, ANY, "elementwise"): Factors(1.0, 0.8, 0.0),
        (ANY, ANY, "batch_norm"): Factors(1.0, 0.4, 0.0),
        ("v100", "float16", "convolution"): Factors(0.5, 0.5, 0.0),
    },
    same={},
    constant=0.2,
    constants={},
)


def test_in_a_dtype_that_was_not_measured_a_kind_computes_as_a_plainer_one() -> None:
    op = {"flops": 100e6, "dtype": "float16"}
    convolution = {**op, "type": "aten.convolution", "kernel": "channels_last"}
    grouped = {**convolution, "kernel": "grouped_channels_last"}
    depthwise = {**convolution, "kernel": "depthwise", "bytes_accessed": 1e5}
    product = times(BOARD, {**op, "type": "aten.mm"}, costs=CORES)
    assert product == pytest.approx([100 / 8 / 0.25])
    assert times(BOARD, {**op, "type": "aten.bmm"}, costs=CORES) == product
    assert times(BOARD, convolution, costs=CORES) == product
    assert times(BOARD, {**convolution, "dtype": "tf32"}, costs=CORES) == pytest.approx([100 / 4 / 0.25])
    assert times(BOARD, grouped, costs=CORES) == pytest.approx([10 * product[0]]), "a tenth, as in float32"
    assert times(BOARD, depthwise, costs=CORES) == pytest.approx([100 / 0.2]), "of no tensor cores: as in float32"
    assert times(BOARD, {**convolution, "dtype": "float32"}, costs=CORES) == pytest.approx([100 / 0.5])


def test_convolutions_on_tensor_cores_copy_what_has_not_its_channels_innermost() -> None:
    op = {"type": "aten.convolution", "flops": 100e6, "bytes_accessed": 1e5, "dtype": "float16"}
    product, copies = 100 / 0.5, 2 * 100 / 0.8
    assert times(BOARD, op, costs=CORES) == pytest.approx([product + copies])
    assert times(BOARD, {**op, "kernel": "channels_last"}, costs=CORES) == pytest.approx([product])
    assert times(BOARD, {**op, "dtype": "float32"}, costs=CORES) == pytest.approx([100 / 0.5]), "vectors don't mind"
    measured = replace(BOARD, kind="v100")
    assert times(measured, op, costs=CORES) == pytest.approx([100 / 0.5]), "what was measured has its copies in it"
    pairs = Device("pairs", "pairs", {"float32": 1e12, "float16": 2e12}, 1e9, 10**9)  # 16-bit numbers, two in a lane
    assert times(pairs, {**op, "flops": 0.0}, costs=CORES) == pytest.approx([100 / 0.5])


def test_dropout_is_one_kernel_on_gpus_and_three_ops_on_cpus() -> None:
    drawn = {"type": "aten.bernoulli", "bytes_accessed": 8e5, "kernel": "dropout"}  # 1e5 numbers of 4 bytes
    scaled, applied = {**drawn, "type": "aten.div"}, {**drawn, "type": "aten.mul", "bytes_accessed": 12e5}
    assert times(BOARD, drawn, scaled, applied, costs=CORES) == pytest.approx([0.0, 0.0, 900 / 0.8])
    half = {**applied, "bytes_accessed": 6e5, "dtype": "float16"}
    assert times(BOARD, half, costs=CORES) == pytest.approx([500 / 0.8])
    on_cpu = times(replace(BOARD, kind="cpu"), drawn, scaled, applied, costs=CORES)
    assert on_cpu == pytest.approx([800 / 0.2, 800 / 0.2, 1200 / 0.2])


def test_a_board_at_its_power_limit_sustains_a_share_of_its_peak_on_tensor_cores() -> None:
    factors = {(ANY, dtype, "matmul"): Factors(0.8, 1.0, 0.0) for dtype in ("float32", "float16")}
    costs = Efficiency(factors, {"bigger": "board"}, 0.2, sustained={"board": 0.5})
    half = {**MM, "flops": 800e6, "dtype": "float16"}
    for kind, share in (("board", 0.5), ("bigger", 0.5), ("other", 0.8)):
        assert times(device(kind), half, MM, costs=costs) == pytest.approx([100 / share, 100 / 0.8])
    slow = replace(costs, entries={(ANY, "float16", "matmul"): Factors(0.3, 1.0, 0.0)})
    assert times(device("board"), half, costs=slow) == pytest.approx([100 / 0.3])
    assert replace(costs, sustained={}).name != costs.name
    assert EFFICIENCY.sustained == {"h100": 0.5}


def test_batch_norm_without_statistics_is_elementwise() -> None:
    op = {"name": "a", "type": "aten.native_batch_norm", "bytes_accessed": 1e5}
    found = [
        CORES.op_time_us(ComputationGraph.from_ops("g", [op], mode=mode), linked([BOARD]))[0, 0]
        for mode in ("training", "inference")
    ]
    assert found == pytest.approx([100 / 0.4, 100 / 0.8])


def test_devices_without_measured_ops_are_named() -> None:
    boards = (V100, replace(H200, name="b"), replace(A100, kind="new", name="c"), replace(CPU, name="d"))
    cluster = linked(boards)
    assert EFFICIENCY.unmeasured(cluster) == ("new", "cpu")
    ops = [{"name": "a", "type": "aten.add", "bytes_accessed": 4.0}]
    assert PlacementProblem(ComputationGraph.from_ops("g", ops), cluster).unmeasured == ("new", "cpu")
    assert PlacementProblem(ComputationGraph.from_ops("g", ops), cluster, ROOFLINE).unmeasured == ()
    timed = ComputationGraph.from_ops("g", [{**ops[0], "time_us": {"new": 2.0}}])
    assert PlacementProblem(timed, cluster).unmeasured == ("cpu",)


def test_equal_tables_are_one_model() -> None:
    again = pickle.loads(pickle.dumps(EFFICIENCY))
    assert again == EFFICIENCY
    assert again.name == EFFICIENCY.name
    assert replace(EFFICIENCY, constant=0.9).name != EFFICIENCY.name


DOCUMENT: dict[str, Any] = {
    "format": "placeto.efficiency/1",
    "constant": 0.6,
    "entries": [{"device": "v100", "dtype": "*", "kind": "matmul", "compute": 0.8, "memory": 0.7, "fixed_us": 2.0}],
}


def _entry(**change: Any) -> dict[str, Any]:
    return {**DOCUMENT, "entries": [{**DOCUMENT["entries"][0], **change}]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (_entry(dtype="half"), r"entries\[0\].dtype must be 'float64', .* or '\*', not 'half'"),
        (_entry(ratios=[2.0, 1.0]), r"entries\[0\].ratios must be \[smallest, largest\], not \[2.0, 1.0\]"),
        ({**DOCUMENT, "entries": DOCUMENT["entries"] * 2}, "entries: there are two of 'v100', '\\*', 'matmul'"),
        ({key: DOCUMENT[key] for key in ("format", "entries")}, "constant is missing"),
    ],
)
def test_bad_tables_are_refused(document: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(document))
    with pytest.raises(CostsError, match=f"table.json: {message}") as refusal:
        load_costs(path)
    assert "\n" not in str(refusal.value)


def test_peaks_beyond_64_bits_are_numbers_too() -> None:
    device = Device("gpu:0", "p100", 10**30, 10**30, 10**9)
    graph = ComputationGraph.from_ops("ops", [{"name": "a", "type": "aten.mm", "flops": 2e9}, {"name": "b"}])
    assert np.isfinite(EFFICIENCY.op_time_us(graph, linked([device]))).all()
