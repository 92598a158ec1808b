"""The optimizer's update as ops of a training step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.graph_memory import HALVES
from placeto.problem.graph.label_values import OPTIMIZER
from placeto.problem.graph.memory_fields import OPTIMIZERS


def with_optimizer_step(
    graph: ComputationGraph,
    gradients: Mapping[str, tuple[str, int] | None],
    optimizer: str,
    master_weights: bool = False,
) -> ComputationGraph:
    """A training step with an op for each trained parameter, which updates it where it is.

    The op reads parameter, gradient and state and writes parameter and state, each as large as the parameter: as many
    bytes as a fused kernel moves. It gives no output; what it makes is resident.

    Args:
        graph: a training step.
        gradients: parameter -> op and output of its gradient, None for a constant, as in `Capture.gradients`.
        optimizer: one of `OPTIMIZERS`.
        master_weights: see `with_optimizer`; the op of a 16-bit parameter then reads and writes the copy in place of
            the weight, and also writes the weight.
    """
    records = graph.to_ops()
    accesses = 1 + OPTIMIZERS[optimizer]  # parameter and state are read and written, the gradient is read
    for path, gradient in gradients.items():
        parameter: dict[str, Any] = records[graph.index[path]]
        mixed = master_weights and parameter.get("dtype") in HALVES
        update = {
            "name": f"{path}/{optimizer}",
            "type": f"{OPTIMIZER}{optimizer}",
            "module": parameter.get("module", ""),
            "bytes_accessed": float((2 + 4 * accesses if mixed else 1 + 2 * accesses) * parameter["param_bytes"]),
            "inputs": [(path, 0), *([gradient] if gradient else [])],
        }
        label = parameter.setdefault("colocation", f"of {path}")
        records.append(update | {"colocation": label})
    return ComputationGraph.from_ops(graph.name, records, graph.mode)
