"""Finds the ops of attention that a CPU writes out because of its dropout, and that GPUs compute in one kernel.

On a CPU, `scaled_dot_product_attention` with dropout is more than ten ops in each direction. No other function has a
"safe" softmax, so that attention which a module itself writes out, as GPUs then do, isn't found.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from placeto.capture.costing.node_costs import dtype, is_mask, packet_of

aten = torch.ops.aten
_DTYPES = ("float32", "float16", "bfloat16")  # those that the kernels of GPUs take
_DIMENSIONS = 4  # those of the tensors that they take
_PRODUCTS = (aten.bmm, aten.mm)
_VIEWS = (aten.view, aten._unsafe_view, aten.expand, aten.transpose, aten.t, aten.detach)


def written_attention(traced: GraphModule) -> dict[Node, str]:
    """The nodes of attention with dropout that was written out, without views -> the dtype of its queries."""
    found: dict[Node, str] = {}
    for softmax in traced.graph.find_nodes(op="call_function", target=aten._safe_softmax.default):
        dropped = [node for node in _readers(softmax) if packet_of(node) is aten.mul and _masks(node)]
        masks = {mask for node in dropped for mask in _masks(node)}
        backward = [node for node in _readers(softmax) if packet_of(node) is aten._softmax_backward_data]
        nodes = {*dropped, *masks, *(drawn for mask in masks for drawn in _masks(mask))}
        for matrix in (softmax, *backward):
            nodes |= set(_up_to_product(matrix))
        for matrix in (*dropped, *backward):  # torch makes the weights in the dtype of the queries, which none may read
            nodes |= {node for node in _readers(matrix) if packet_of(node) in _PRODUCTS or not node.users}
        for product in [node for node in nodes if packet_of(node) in _PRODUCTS]:
            nodes |= set(_copies(product))
        *_, scores = _up_to_product(softmax)
        *_, query = _prepared(scores.all_input_nodes[0])
        if dropped and dtype(query) in _DTYPES and softmax.meta["val"].dim() == _DIMENSIONS:
            found |= dict.fromkeys(nodes, dtype(query))
    return found


def _up_to_product(matrix: Node) -> Iterator[Node]:
    """A node that makes a matrix of a product's size, and the nodes above it up to the product."""
    yield matrix
    while matrix.all_input_nodes and packet_of(matrix) not in _PRODUCTS:
        matrix = _shown(matrix.all_input_nodes[0])
        yield matrix


def _copies(product: Node) -> Iterator[Node]:
    """The copies that attention makes of what it multiplies, and of the product, which it scales and casts back."""
    for factor in product.all_input_nodes:
        yield from list(_prepared(factor))[:-1]
    scaled = [node for node in _readers(product) if _is_scaled(node)]
    yield from scaled
    for node in scaled or [product]:
        yield from (cast for cast in _readers(node) if _is_cast(cast) and dtype(cast) != "float32")


def _prepared(factor: Node) -> Iterator[Node]:
    """The copies of which a factor of a product is the last, and then what they were made of.

    Attention casts it to 32 bits, scales it, and lays it out, in this order.
    """
    factor = _shown(factor)
    for is_made in (_is_laid_out, _is_scaled, _is_cast):
        if is_made(factor) and not (is_made is _is_cast and dtype(factor) != "float32"):
            yield factor
            factor = _shown(factor.all_input_nodes[0])
    yield factor


def _is_laid_out(node: Node) -> bool:
    return packet_of(node) is aten.clone


def _is_scaled(node: Node) -> bool:
    return packet_of(node) is aten.mul and len(node.all_input_nodes) == 1


def _is_cast(node: Node) -> bool:
    """Whether a node casts from 16 to 32 bits, or back."""
    return packet_of(node) is aten._to_copy and {dtype(node), dtype(node.all_input_nodes[0])} & {*_DTYPES[1:]} != set()


def _masks(node: Node) -> list[Node]:
    """The inputs of a node that make the mask of a dropout."""
    return [source for source in node.all_input_nodes if is_mask(source)]


def _shown(node: Node) -> Node:
    """What a view shows, or the node itself if it is no view."""
    while packet_of(node) in _VIEWS:
        node = node.all_input_nodes[0]
    return node


def _readers(node: Node) -> Iterator[Node]:
    """The nodes that read a node, also through views."""
    for user in node.users:
        if packet_of(user) in _VIEWS:
            yield from _readers(user)
        else:
            yield user
