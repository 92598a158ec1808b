"""The rules that the arrays of a computation graph keep.

Legend: N ops, T tensors, E edges.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placeto.errors import GraphError
from placeto.problem.checks import Text, check_array, check_choice, checked
from placeto.problem.graph.arrays import GraphArrays
from placeto.problem.graph.label_values import GRADIENT, MODES, NO_MICRO_BATCH
from placeto.problem.graph.op_columns import COLUMNS
from placeto.problem.messages import quote

MOST_PARTS = 400
"""Most parts of a module's path: PyTorch runs no deeper modules, and grouping takes time for every depth."""
_ARRAYS: dict[str, tuple[type[np.generic], str]] = {  # field -> its dtype, and what it has an entry for
    **{key: (column.dtype, "op") for key, column in COLUMNS.items() if column.dtype is not None},
    "colocation": (np.int64, "op"),
    "output_ptr": (np.int64, "offset"),
    "output_bytes": (np.int64, "tensor"),
    "edge_src": (np.int64, "edge"),
    "edge_dst": (np.int64, "edge"),
    "edge_output": (np.int64, "edge"),
}


def validate(graph: GraphArrays) -> None:
    """Set columns that are None to their defaults, and check the graph.

    Whoever makes the arrays has checked each op. Here arrays are checked for their types, their lengths and what costs
    are made of, and the graph is checked for what follows from several ops.

    Raises:
        GraphError: for the first rule that the graph breaks.
    """
    names, num_ops = graph.op_names, len(graph.op_names)
    if num_ops == 0:
        raise GraphError("the graph is empty: it has no op")
    checked(graph.name, Text, GraphError, "the name of the graph")
    check_choice(graph.mode, MODES, "mode", GraphError)
    for key, column in COLUMNS.items():
        if getattr(graph, key) is None:
            object.__setattr__(graph, key, column.of([column.usual] * num_ops))
        if column.dtype is None and len(getattr(graph, key)) != num_ops:
            raise GraphError(f"{key} must have {num_ops} values, one for each op")
    lengths = {"op": num_ops, "offset": num_ops + 1, "tensor": len(graph.output_bytes), "edge": len(graph.edge_src)}
    for key, (kind, each) in _ARRAYS.items():
        check_array(getattr(graph, key), key, kind, lengths[each], GraphError)
    for kind_name, times in graph.time_us.items():
        check_array(times, f"time_us[{quote(kind_name)}]", np.float64, num_ops, GraphError)
        rule = f"time_us[{quote(kind_name)}] must be a finite number >= 0"
        _refuse(names, np.isinf(times) | (times < 0), times, rule)
    for key in ("flops", "bytes_accessed", "param_bytes"):
        values = getattr(graph, key)
        _refuse(names, ~np.isfinite(values) | (values < 0), values, f"{key} must be a finite number >= 0")
    if long := [module for module in set(graph.modules) if module.count(".") >= MOST_PARTS]:
        first = min(map(graph.modules.index, long))
        name, parts = names[first], graph.modules[first].count(".") + 1
        raise GraphError(f"op {quote(name)}: its module's path must have at most {MOST_PARTS} parts, not {parts}")

    ptr, src, dst = graph.output_ptr, graph.edge_src, graph.edge_dst
    missing = graph.edge_output >= np.diff(ptr)[src]
    if missing.any():
        edge = int(missing.argmax())
        source, reader = names[src[edge]], names[dst[edge]]
        outputs = f"{np.diff(ptr)[src[edge]]} outputs, there is no output {graph.edge_output[edge]}"
        raise GraphError(f"op {quote(reader)}: input {quote(source)} has {outputs}")
    without = (np.diff(ptr) == 0) | (np.diff(graph.input_ptr) == 0)
    rule = "in_place must be false for an op without inputs or outputs"
    _refuse(names, graph.in_place & without, graph.in_place, rule)
    if any(graph.gradient_of):
        _check_sums(graph)
    order = graph.topological_order
    if len(order) < num_ops:
        blocked = min(set(range(num_ops)) - set(order.tolist()))
        raise GraphError(f"op {quote(names[_on_cycle(graph, blocked, set(order.tolist()))])}: on a cycle")


def _refuse(names: Sequence[str], bad: np.ndarray, values: np.ndarray, rule: str) -> None:
    """Raise a GraphError that names the first op whose entry in `bad` (N,) is true, if there is one."""
    if bad.any():
        op = int(bad.argmax())
        raise GraphError(f"op {quote(names[op])}: {rule}, not {values[op]}")


def _check_sums(graph: GraphArrays) -> None:
    """Refuse a graph whose sums of gradients (`gradient_of`) aren't chains of ops, which simulators rely on."""
    readers, outputs = np.bincount(graph.edge_tensor, minlength=len(graph.output_bytes)), np.diff(graph.output_ptr)
    before: dict[str, int] = {}  # parameter -> the last op of its sum so far, -1 after the whole gradient
    for op in (op for op, parameter in enumerate(graph.gradient_of) if parameter):
        parameter, is_whole = graph.gradient_of[op], graph.op_types[op] == GRADIENT
        reads, last = graph.reads[op], before.get(parameter)
        chained = len(reads) == (1 if is_whole else 2) and (last is None or reads[0] == last)
        if not chained or not (is_whole or (outputs[op] == 1 and graph.micro_batches[op] == NO_MICRO_BATCH)):
            raise GraphError(
                f"op {quote(graph.op_names[op])}: gradient_of must be left out, as only ops of a sum have it: each "
                f'adds a tensor to the sum before, and an op of type "{GRADIENT}" reads the last sum'
            )
        if last is not None and readers[graph.output_ptr[last]] != 1:
            name = quote(graph.op_names[last])
            raise GraphError(f"op {name}: has gradient_of, so that only the next op of its sum may read it")
        before[parameter] = -1 if is_whole else op


def _on_cycle(graph: GraphArrays, op: int, done: set[int]) -> int:
    """Return an op on a cycle: walk from `op`, which isn't `done`, to producers that aren't, until one comes twice."""
    seen: set[int] = set()
    while op not in seen:
        seen.add(op)
        producers = graph.edge_src[slice(*np.searchsorted(graph.edge_dst, [op, op + 1]))].tolist()
        op = next(p for p in producers if p not in done)
    return op
