"""Masks of models of transformers, which depend on whether several sequences are packed into one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import placeto
from placeto.capture.trace import capture_training

transformers = pytest.importorskip("transformers")
LENGTH = 24
IDS = torch.arange(LENGTH)[None] % 7
PACKED = torch.cat([torch.arange(10), torch.arange(LENGTH - 10)])[None]


def language_model(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**small, vocab_size=11, use_cache=False, **options)
    return transformers.LlamaForCausalLM(config)


class Positioned(nn.Module):
    """Gives its model the positions that it works out."""

    def __init__(self, positions: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.positions = language_model(), positions

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, labels=ids, position_ids=self.positions(ids)).loss


def restarted(ids: Tensor) -> Tensor:
    positions = torch.arange(LENGTH)[None].clone()
    positions[:, 10:] -= 10
    return positions


def masks(module: nn.Module, inputs: Any) -> int:
    """How many tensors of the step are as large as a mask."""
    graph = capture_training(module, inputs)
    return int(np.isin(graph.output_bytes, (LENGTH**2, 4 * LENGTH**2)).sum())


def test_one_sequence_a_row_needs_no_mask() -> None:
    """As in eager, where the kernel of the attention is told that it is causal."""
    assert masks(language_model(), {"input_ids": IDS, "labels": IDS}) == 0
    assert masks(Positioned(lambda ids: torch.arange(LENGTH)[None]), [IDS]) == 0


@pytest.mark.parametrize(
    "positions",
    [lambda ids: torch.arange(LENGTH)[None] % 10, restarted, lambda ids: torch.arange(LENGTH)[None] + 0 * ids],
    ids=["packed", "changed in place", "of the input"],
)
def test_other_positions_make_masks(positions: Callable[[Tensor], Tensor]) -> None:
    assert masks(Positioned(positions), [IDS]) > 0


def test_packed_sequences_are_placed_with_their_mask() -> None:
    module, inputs = language_model(), {"input_ids": IDS, "labels": IDS, "position_ids": PACKED}
    want = module(**inputs).loss
    assert want != module(input_ids=IDS, labels=IDS).loss
    placed = placeto.place(module, inputs, cluster="2xv100", training=True, placer="roundrobin")
    torch.testing.assert_close(placed.compile(devices=["cpu:0", "cpu:1"])(**inputs), want)
