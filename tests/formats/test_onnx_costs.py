"""FLOPs, bytes and dtypes of ONNX ops by hand, of shapes alone."""

from math import log2
from typing import Any

import pytest

from placeto.formats.onnx_import.onnx_costs import Operand, bytes_accessed, dtype_of, flops, item_bytes, kernel

FLOAT, UINT8, INT8, INT32, INT4, INT2 = 1, 2, 3, 6, 22, 26  # as ONNX numbers them

CASES: dict[str, tuple[str, list[tuple[int, ...] | None], tuple[int, ...], dict[str, Any], float]] = {
    "product": ("MatMul", [(2, 3, 4), (2, 4, 5)], (2, 3, 5), {}, 2 * 2 * 3 * 4 * 5),
    "transposed product": ("Gemm", [(4, 3), (4, 5)], (3, 5), {"transA": 1}, 2 * 3 * 4 * 5),
    "transposed convolution": (
        "ConvTranspose",
        [(2, 4, 5, 5), (4, 3, 2, 2)],
        (2, 6, 10, 10),
        {"group": 2},
        2 * 200 * 3 * 4,
    ),
    "sum": ("Add", [(2, 3), (2, 3)], (2, 3), {}, 0),
    "deformed convolution": ("DeformConv", [(1, 2, 6, 6), (3, 2, 3, 3)], (1, 3, 4, 4), {}, 2 * 3 * 16 * 18),
    "ellipsis": ("Einsum", [(2, 3, 4, 5), (2, 3, 6, 5)], (2, 3, 4, 6), {"equation": "...id,...jd->...ij"}, 1440),
    "broadcast": ("Einsum", [(2, 3, 4, 5), (5, 6)], (2, 3, 4, 6), {"equation": b"...d, df -> ...f"}, 2 * 24 * 30),
    "chain": ("Einsum", [(3, 4), (4, 5), (5, 6)], (3, 6), {"equation": "ij,jk,kl->il"}, 2 * 3 * 4 * 5 + 2 * 3 * 5 * 6),
    "implicit output": ("Einsum", [(3, 4), (4, 5)], (3, 5), {"equation": "ij,jk"}, 2 * 3 * 4 * 5),
    "summed before": ("Einsum", [(3, 4), (4, 5)], (5,), {"equation": "ij,jk->k"}, 2 * 4 * 5),
    "attention with a past": (
        "Attention",
        [(2, 8, 1, 16), (2, 8, 1, 16), (2, 8, 1, 16), None, (2, 8, 99, 16), (2, 8, 99, 16)],
        (2, 8, 1, 16),
        {},
        4 * 2 * 8 * 100 * 16,
    ),
    "attention, heads in one dimension": (
        "Attention",
        [(2, 5, 32), (2, 7, 16), (2, 7, 16)],
        (2, 5, 32),
        {"q_num_heads": 4, "kv_num_heads": 2},
        4 * 2 * 4 * 5 * 7 * 8,
    ),
    "transform": ("DFT", [(3, 16, 1)], (3, 16, 2), {"axis": 1}, 2.5 * 3 * 16 * log2(16)),
    "transform, one side": ("DFT", [(3, 16, 1)], (3, 9, 2), {"axis": 1, "onesided": 1}, 2.5 * 3 * 16 * 4),
    "transform, padded": ("DFT", [(3, 12, 1)], (3, 9, 2), {"axis": 1, "onesided": 1}, 2.5 * 3 * 16 * 4),
    "back to real numbers": (
        "DFT",
        [(3, 9, 2)],
        (3, 16, 1),
        {"axis": 1, "onesided": 1, "inverse": 1},
        2.5 * 3 * 16 * 4,
    ),
    # 13 frames of 16 numbers, each 4 behind the one before
    "transform of frames": ("STFT", [(2, 64, 1), (), (16,)], (2, 13, 9, 2), {}, 2.5 * 2 * 13 * 16 * 4),
    "transform of frames, no window": ("STFT", [(2, 64), (), None, ()], (2, 13, 9, 2), {}, 2.5 * 2 * 13 * 16 * 4),
    "transform of frames of 3": ("STFT", [(1, 9, 1), (), (3,)], (1, 3, 2, 2), {}, round(2.5 * 3 * 3 * log2(3))),
    "of complex frames": ("STFT", [(2, 64, 2), (), (16,)], (2, 13, 16, 2), {"onesided": 0}, 5 * 2 * 13 * 16 * 4),
}


@pytest.mark.parametrize("name", CASES)
def test_flops_of_ops_by_hand(name: str) -> None:
    kind, read, written, attributes, expected = CASES[name]
    operands = [None if shape is None else Operand(shape, FLOAT) for shape in read]
    assert flops(kind, operands, [Operand(written, FLOAT)], attributes) == expected


def test_convolutions_of_each_channel_have_a_kernel_of_their_own() -> None:
    x, weight = Operand((1, 4, 6, 6), FLOAT), Operand((8, 1, 3, 3), FLOAT)
    assert kernel("Conv", [x, weight], {"group": 4}) == "depthwise"
    assert kernel("Conv", [x, weight], {"group": 2}) == "grouped"
    assert kernel("Relu", [x], {}) == ""


def test_products_of_integers_compute_in_int8() -> None:
    integers = [Operand((8, 8), INT32)]
    assert dtype_of(integers * 2, integers, True) == "int8"
    assert dtype_of([Operand((8, 8), FLOAT), *integers], integers, True) == "float32"


@pytest.mark.parametrize(("dtype", "expected"), [(FLOAT, 28), (INT8, 7), (INT4, 4), (INT2, 2)])
def test_numbers_of_few_bits_share_bytes(dtype: int, expected: int) -> None:
    assert item_bytes(Operand((7,), dtype)) == expected


def test_what_picks_parts_of_a_tensor_reads_only_these() -> None:
    rows, row, index = Operand((1000, 8), FLOAT), Operand((1, 8), FLOAT), Operand((1,), INT32)
    assert bytes_accessed("Slice", [rows, index, index], [row]) == 32 + 4 + 4 + 32
    assert bytes_accessed("Gather", [rows, index], [row]) == 32 + 4 + 32
    read = [index, None, rows, rows, None]  # of words and positions, without segments
    assert bytes_accessed("EmbedLayerNormalization", read, [row]) == 4 + 32 + 32 + 32
    assert bytes_accessed("Add", [row, None], [row]) == 32 + 32, "a tensor that is added to itself is read once"
