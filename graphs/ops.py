"""Fused cell kernels: the elementwise part of a recurrent cell as one op, as on a GPU.

Each is a `torch.library` custom op with a backward op, so that a captured graph has one op in place of the six to
twelve ops of the cell when it is written out. They compute with plain PyTorch; shapes: B batch, H hidden.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ACTIVATIONS = ("tanh", "relu", "sigmoid", "identity")


@torch.library.custom_op("graphs::lstm_cell", mutates_args=())
def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One LSTM step after the matrix products (Hochreiter and Schmidhuber, 1997).

    Args:
        gates: (B, 4H), input, forget, candidate and output gate before their activations.
        cell: (B, H), the cell state.

    Returns:
        hidden (B, H), cell (B, H), and the activated gates (B, 4H), which the backward pass needs.
    """
    i, f, g, o = gates.chunk(4, dim=1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * cell + i * g
    return o * new.tanh(), new, torch.cat([i, f, g, o], dim=1)


@torch.library.custom_op("graphs::lstm_cell_backward", mutates_args=())
def lstm_cell_backward(
    grad_hidden: Tensor, grad_new: Tensor, cell: Tensor, new: Tensor, activated: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of `lstm_cell`: of gates (B, 4H) and of cell (B, H)."""
    i, f, g, o = activated.chunk(4, dim=1)
    squashed = new.tanh()
    grad = grad_new + grad_hidden * o * (1 - squashed**2)
    gates = [grad * g * i * (1 - i), grad * cell * f * (1 - f), grad * i * (1 - g**2)]
    return torch.cat([*gates, grad_hidden * squashed * o * (1 - o)], dim=1), grad * f


@torch.library.custom_op("graphs::highway", mutates_args=())
def highway(preactivation: Tensor, previous: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """One node of an ENAS recurrent cell: ``c * f(a) + (1 - c) * previous`` (Pham et al., 2018, section 3.1).

    Args:
        preactivation: (B, 2H), gate c before its sigmoid, and a.
        previous: (B, H), the node's input.
        activation: f, one of `ACTIVATIONS`.

    Returns:
        The new hidden state (B, H), and (B, 2H) the activated gate and value, which the backward pass needs.
    """
    gate, value = preactivation.chunk(2, dim=1)
    gate, value = gate.sigmoid(), _activate(value, activation)
    return previous + gate * (value - previous), torch.cat([gate, value], dim=1)


@torch.library.custom_op("graphs::highway_backward", mutates_args=())
def highway_backward(grad: Tensor, activated: Tensor, previous: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Gradients of `highway`: of preactivation (B, 2H) and of previous (B, H)."""
    gate, value = activated.chunk(2, dim=1)
    slope = {
        "tanh": 1 - value**2,
        "relu": (value > 0).to(value.dtype),
        "sigmoid": value * (1 - value),
        "identity": torch.ones_like(value),
    }[activation]
    pre = torch.cat([grad * (value - previous) * gate * (1 - gate), grad * gate * slope], dim=1)
    return pre, grad * (1 - gate)


def _activate(value: Tensor, activation: str) -> Tensor:
    if activation == "identity":
        return value.clone()
    return {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}[activation](value)


@lstm_cell.register_fake
def _(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(cell), torch.empty_like(cell), torch.empty_like(gates)


@lstm_cell_backward.register_fake
def _(grad_hidden: Tensor, grad_new: Tensor, cell: Tensor, new: Tensor, activated: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(activated), torch.empty_like(cell)


@highway.register_fake
def _(preactivation: Tensor, previous: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(previous), torch.empty_like(preactivation)


@highway_backward.register_fake
def _(grad: Tensor, activated: Tensor, previous: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(activated), torch.empty_like(previous)


def _lstm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[1], output[1], output[2])
    ctx.mark_non_differentiable(output[2])


def _lstm_grad(ctx: Any, hidden: Tensor, new: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return lstm_cell_backward(hidden, new, *ctx.saved_tensors)


def _highway_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.activation = inputs[2]
    ctx.save_for_backward(output[1], inputs[1])
    ctx.mark_non_differentiable(output[1])


def _highway_grad(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
    return *highway_backward(grad, *ctx.saved_tensors, ctx.activation), None


lstm_cell.register_autograd(_lstm_grad, setup_context=_lstm_setup)
highway.register_autograd(_highway_grad, setup_context=_highway_setup)
