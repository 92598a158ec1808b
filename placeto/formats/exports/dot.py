"""A placed model as a picture for graphviz: modules, not ops, coloured by device.

The module that takes most time is opened again and again, until there are as many boxes as can be read. A box has the
colours of its devices, in stripes by their shares; arrows say how much goes from box to box.

Legend: N ops, B boxes.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from placeto.formats.op_labels import opened
from placeto.plumbing.terminal import printable
from placeto.problem.units import format_bytes, format_us
from placeto.simulator.schedule import Schedule

MOST_BOXES = 60
_LABELLED = 0.05  # arrows of at least this share of the largest arrow's bytes have a label


def modules_dot(schedule: Schedule, most_boxes: int = MOST_BOXES) -> str:
    """Return the picture in graphviz's language DOT, as input of ``dot -Tsvg``."""
    from matplotlib import colormaps  # takes a second
    from matplotlib.colors import to_hex

    problem = schedule.problem
    graph, names = problem.graph, problem.cluster.device_names
    time = schedule.finish_us - schedule.start_us
    boxes = opened([module or "(no module)" for module in graph.modules], time, most_boxes)
    colors = [to_hex(colormaps["tab20"]((2 * d + 1) % 20 / 20 + 0.001)) for d in range(len(names))]
    lines = [
        f'digraph "{_quoted(graph.name)}" {{',
        '  graph [rankdir=TB, fontname="sans-serif", ranksep=0.4, nodesep=0.25];',
        '  node [shape=box, style=filled, fontname="sans-serif", fontsize=11, margin="0.12,0.06"];',
        '  edge [fontname="sans-serif", fontsize=9, color="#555555"];',
    ]
    numbers = {label: number for number, label in enumerate(dict.fromkeys(boxes))}
    box = np.array([numbers[label] for label in boxes])
    for label, number in numbers.items():
        ops = box == number
        took = np.bincount(schedule.placement[ops], time[ops] + 1e-9, len(names))
        shares = took / took.sum()
        shown = [d for d in np.argsort(-shares, kind="stable").tolist() if shares[d] >= 0.01]
        where = ", ".join(names[d] if len(shown) == 1 else f"{names[d]} {shares[d]:.0%}" for d in shown)
        text = f"{_quoted(label)}\\n{format_us(float(time[ops].sum()))}, {int(ops.sum())} ops\\n{_quoted(where)}"
        stripes = [f"{colors[d]};{shares[d]:.3f}" for d in shown[:-1]] + [colors[shown[-1]]]
        style = "style=striped, " if len(shown) > 1 else ""
        lines.append(f'  b{number} [label="{text}", {style}fillcolor="{":".join(stripes)}"];')
    crossing = box[graph.edge_src] != box[graph.edge_dst]
    reads = np.stack([graph.edge_tensor, box[graph.edge_dst]])[:, crossing]
    tensor, to = np.unique(reads, axis=1)  # a tensor goes to a box once
    arrows = Counter[tuple[int, int]]()
    for src, dst, size in zip(box[graph.producer[tensor]], to, graph.output_bytes[tensor], strict=True):
        arrows[src, dst] += int(size)
    most = max(arrows.values(), default=0) or 1
    for (src, dst), size in sorted(arrows.items()):
        label = f', label="{format_bytes(size)}"' if size >= _LABELLED * most else ""
        back = ", constraint=false" if dst < src else ""
        lines.append(f"  b{src} -> b{dst} [penwidth={0.5 + 3.0 * size / most:.2f}{label}{back}];")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')
