"""Micro-batches split samples: a module that computes one position of dimension 0 from others has none there."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from placeto.capture.mixing import resized
from placeto.capture.trace import CaptureError, capture_inference, capture_training
from tests.captures import Made


def loss(output: Tensor) -> Tensor:
    return output.square().mean()


def carried(self: Any, x: Tensor) -> Tensor:
    state, outputs = (x.new_zeros(x.shape[1], 4), x.new_zeros(x.shape[1], 4)), []
    for step in x:
        state = self.cell(step, state)
        outputs.append(state[0])
    return torch.stack(outputs)


def joined(self: Any, x: Tensor) -> Tensor:
    state = torch.zeros_like(x[0])
    for number in range(len(x)):
        state = self.linear(torch.cat([state, x[number]], -1)).tanh()
    return state


def attended(self: Any, x: Tensor) -> Tensor:
    q, k, v = self.linear(x).transpose(0, 1).chunk(3, -1)
    return ((q @ k.transpose(1, 2) / 2.0).softmax(-1) @ v).transpose(0, 1)


def fused(self: Any, x: Tensor) -> Tensor:
    q, k, v = (part.unflatten(-1, (2, 2)).permute(1, 2, 0, 3) for part in self.linear(x).chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3)


def fused_without_heads(self: Any, x: Tensor) -> Tensor:
    q, k, v = self.linear(x).transpose(0, 1).chunk(3, -1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)


def convolved(self: Any, x: Tensor) -> Tensor:
    return self.conv(x.permute(1, 2, 0)).permute(2, 0, 1)


MIXING = {
    "cell": (Made(carried, cell=nn.LSTMCell(4, 4)), r"module 'cell' .* \(a loop\)"),
    "joined": (Made(joined, linear=nn.Linear(8, 4)), r"the module .* \(a loop\)|module 'linear' .* \(a loop\)"),
    "attention": (Made(attended, linear=nn.Linear(4, 12)), r"the module .* \(attention\)"),
    "fused": (Made(fused, linear=nn.Linear(4, 12)), r"the module .* \(attention\)"),
    "convolution": (Made(convolved, conv=nn.Conv1d(4, 4, 3, padding=1)), r"module 'conv' .* \(a convolution\)"),
}


@pytest.mark.parametrize("kind", MIXING)
def test_positions_that_are_computed_from_others_are_not_split(kind: str) -> None:
    module, where = MIXING[kind]
    for count in (2, 4):
        with pytest.raises(CaptureError, match=f"{where}, so that it is no dimension of samples, .* micro_batches=1"):
            capture_training(module, [torch.empty(4, 3, 4)], loss, micro_batches=count)
    with pytest.raises(CaptureError, match=where):
        capture_inference(module, [torch.empty(2, 3, 4)], micro_batches=2)
    capture_training(module, [torch.empty(8, 3, 4)], loss)


def sample_by_sample(self: Any, x: Tensor) -> Tensor:
    start = torch.zeros_like(x[0])
    return torch.stack([self.linear(one + start).relu() for one in x])


def summed(self: Any, x: Tensor) -> Tensor:
    total = x.new_zeros(())
    for one in x:
        total = total + self.linear(one).square().mean()
    return total


def compared(self: Any, x: Tensor) -> Tensor:
    """As a loss that tells samples of the batch from each other: it may be meant."""
    rows = self.linear(x).flatten(1)
    return (rows @ rows.t()).log_softmax(-1).diagonal()


def masked(self: Any, x: Tensor) -> Tensor:
    """Samples in a row, as in packed attention: the mask may keep them apart."""
    q, k, v = self.linear(x.flatten(0, 1)).chunk(3, -1)
    of = torch.arange(len(x)).repeat_interleave(x.shape[1])
    scores = (q @ k.t()).masked_fill(of[:, None] != of, -torch.inf)
    return (scores.softmax(-1) @ v).view(x.shape)


def through_time(self: Any, x: Tensor) -> Tensor:
    return carried(self, x.transpose(0, 1)).transpose(0, 1)


def in_turn(self: Any, x: Tensor) -> Tensor:
    return attended(self, x.transpose(0, 1)).transpose(0, 1)


SEPARATE = {
    "sample by sample": Made(sample_by_sample, linear=nn.Linear(4, 4)),
    "a sum over samples": Made(summed, linear=nn.Linear(4, 4)),
    "compared": Made(compared, linear=nn.Linear(4, 4)),
    "masked": Made(masked, linear=nn.Linear(4, 12)),
    "through time": Made(through_time, cell=nn.LSTMCell(4, 4)),
    "attention within samples": Made(in_turn, linear=nn.Linear(4, 12)),
    "convolution of width 1": Made(convolved, conv=nn.Conv1d(4, 4, 1)),
}


@pytest.mark.parametrize("kind", SEPARATE)
def test_samples_by_themselves_are_split(kind: str) -> None:
    for batch, count, length in ((8, 2, 4), (8, 2, 8), (4, 4, 4), (2, 2, 2)):  # sequences as long as batch or part
        capture_training(SEPARATE[kind], [torch.empty(batch, length, 4)], loss, micro_batches=count)


def test_a_mask_is_not_cut_to_one_row() -> None:
    def forward(self: Any, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.linear(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    module, inputs = Made(forward, linear=nn.Linear(4, 12)), [torch.empty(6, 6, 4), torch.zeros(6, 6)]
    with pytest.raises(CaptureError, match=r"takes 1 sample and 6, but not 2 \(RuntimeError: .* such as a mask, is 6"):
        capture_training(module, inputs, loss, micro_batches=6)
    capture_training(module, [torch.empty(6, 5, 4), torch.zeros(5, 5)], loss, micro_batches=6)


def test_a_module_of_single_samples_is_given_one_at_a_time() -> None:
    module = Made(lambda self, x: self.linear(x.view(3, 4)), linear=nn.Linear(4, 4))
    capture_training(module, [torch.empty(6, 3, 4)], loss, micro_batches=6)


def test_tensors_of_samples_are_made_longer_and_shorter() -> None:
    x, other = torch.arange(6.0).view(3, 2), torch.ones(2)
    longer, same, text = resized((x, other, "text"), 3, 4)
    assert torch.equal(longer, x[[0, 1, 2, 0]])
    assert same is other
    assert text == "text"
    assert torch.equal(resized(x, 3, 2), x[:2])
