"""Draws docs/architecture.svg, the picture of docs/architecture.md: ``python docs/architecture_picture.py``."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

WIDTH, HEIGHT = 980, 425
SVG = Path(__file__).with_name("architecture.svg")


class Box(NamedTuple):
    """A step: its name, and the files that have it, below placeto/."""

    left: int
    top: int
    width: int
    title: str
    lines: tuple[str, ...]
    colour: str

    @property
    def height(self) -> int:
        """It has a line for the name and one for each file."""
        return 30 + 17 * len(self.lines)


DATA, STEP, SIMULATED, LEARNED = "#eef2f7", "#e3f0e3", "#fbeedd", "#ece4f5"
BOXES = {
    "model": Box(10, 20, 150, "your model", ("nn.Module, ONNX file,", "or graph file"), DATA),
    "capture": Box(200, 20, 170, "1 capture", ("capture/trace.py", "capture/building/ops.py"), STEP),
    "graph": Box(410, 20, 160, "graph", ("problem/graph/",), DATA),
    "problem": Box(610, 20, 170, "problem", ("problem/problem.py", "problem/cluster/", "problem/costs/"), DATA),
    "groups": Box(820, 20, 150, "2 grouping", ("problem/grouping/",), STEP),
    "rules": Box(
        720,
        150,
        250,
        "3 construction rules",
        ("heuristics/local_search/starts.py", "heuristics/pipelines/plans.py"),
        STEP,
    ),
    "pass": Box(440, 150, 240, "4 the policy's pass", ("policies/guided_search.py", "policies/sweeps.py"), STEP),
    "search": Box(
        150, 150, 250, "5 search", ("policies/guided_search.py", "heuristics/local_search/annealing.py"), STEP
    ),
    "placement": Box(10, 150, 105, "placement", ("and its order",), DATA),
    "network": Box(10, 300, 190, "the policy's network", ("policies/placeto.py", "policies/compiled.py"), LEARNED),
    "observation": Box(
        240, 300, 200, "observation", ("environment/observation.py", "environment/columns.py"), SIMULATED
    ),
    "simulator": Box(
        480,
        300,
        240,
        "6 simulator",
        ("simulator/evaluator.py", "simulator/schedule.py", "simulator/kernel.py"),
        SIMULATED,
    ),
    "order": Box(760, 300, 210, "7 order", ("problem/dispatch.py", "heuristics/pipelines/"), STEP),
}
SIMULATING = 138, 138, 838, 88  # a frame around the steps that simulate placements: left, top, width, height
LEGEND = (  # what the colours mean, with the place of each from the left
    (10, DATA, "data"),
    (90, STEP, "a step, with its number on the page"),
    (370, SIMULATED, "simulation"),
    (480, LEARNED, "learned"),
    (570, "none", "in the dashed frame: the steps that simulate placements"),
)
ARROWS = (  # from x, y to x, y, and what travels
    (160, 52, 200, 52, ""),
    (370, 52, 410, 52, ""),
    (570, 52, 610, 52, ""),
    (780, 52, 820, 52, ""),
    (895, 67, 895, 138, "groups"),
    (720, 182, 680, 182, ""),
    (440, 182, 400, 182, ""),
    (138, 182, 115, 182, ""),
    (620, 226, 620, 300, "placements"),
    (510, 300, 510, 226, "makespans"),
    (480, 332, 440, 332, ""),
    (240, 332, 200, 332, ""),
    (170, 300, 170, 226, "scores of moves"),
    (760, 332, 720, 332, ""),
)


def picture() -> str:
    """The picture as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        "<title>How a placement is made</title>",
        '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
        '<path d="M0,0 L9,4 L0,8 z" fill="#444"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    left, top, width, height = SIMULATING
    parts.append(
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="8" fill="none" stroke="#777" '
        'stroke-dasharray="5 4"/>'
    )
    for box in BOXES.values():
        parts.append(
            f'<rect x="{box.left}" y="{box.top}" width="{box.width}" height="{box.height}" rx="6" '
            f'fill="{box.colour}" stroke="#777"/>'
        )
        parts.append(_text(box.left + 10, box.top + 20, box.title, 14, "bold"))
        parts += [_text(box.left + 10, box.top + 39 + 17 * i, line, 12) for i, line in enumerate(box.lines)]
    for x, y, to_x, to_y, label in ARROWS:
        parts.append(
            f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="#444" stroke-width="1.5" '
            'marker-end="url(#head)"/>'
        )
        if label:
            parts.append(_text(x + 6, (y + to_y) // 2 + 4, label, 12))
    for left, colour, meaning in LEGEND:
        dashes = ' stroke-dasharray="3 2"' if colour == "none" else ""
        parts.append(
            f'<rect x="{left}" y="{HEIGHT - 21}" width="14" height="14" rx="3" fill="{colour}" stroke="#777"{dashes}/>'
        )
        parts.append(_text(left + 20, HEIGHT - 10, meaning, 12))
    return "\n".join([*parts, "</svg>", ""])


def _text(x: int, y: int, text: str, size: int, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="#222">{escape(text)}</text>'


if __name__ == "__main__":
    SVG.write_text(picture())
