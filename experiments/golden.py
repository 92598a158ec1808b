"""Are simulated numbers what they were? Times and memory of small steps beside a record that is kept.

python -m experiments.golden [--record] [--cells PREFIX ...] [--workers 1]

Run it before and after a change that is to leave all numbers as they are. The cells are those of
`experiments.golden_cells`; a cell has numbers, and texts such as the reason why torch refuses a plan. The parts are:

- gate: makespans of `experiments.gate`;
- plans: all plans of the models in `MODELS`, in 4 micro-batches on 4xv100;
- torch: these plans as torch runs them, in whole chunks, with gradients summed over replicas; or why it doesn't;
- replicas: data parallelism of these models, in the stages of ZeRO and in closed form;
- torch_plans, outside_bubbles, outside_sailor, pipeline_steps, models_in_micro_batches: numbers of these experiments.

It fails, with exit code 1, if the mean of a quantity over a part differs from the record by 0.2 %, if a number differs
by 1.5 %, or if a cell or a number is missing. Numbers that differ by more than 1e-9, and texts that differ, are listed.
The parts gate and models_in_micro_batches ask a network, whose sums may differ from processor to processor.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import tyro

from experiments.golden_cells import GROUPS, Cells, compute
from experiments.harness import measure_cells
from experiments.tables import Table, markdown
from placeto.problem.files import write_text

RECORD = Path(__file__).parent / "data" / "golden.json"
MEAN, NUMBER, EQUAL = 0.002, 0.015, 1e-9
"""Shares by which the mean of a quantity, and a number, may differ; numbers that differ by less are equal."""


class Change(NamedTuple):
    """A quantity of a cell beside the record; None where there is none."""

    cell: str
    quantity: str
    now: float | str | None
    recorded: float | str | None

    @property
    def ratio(self) -> float | None:
        """Now / recorded; None if they are no two numbers."""
        if self.now is None or self.recorded is None or isinstance(self.now, str) or isinstance(self.recorded, str):
            return None
        return 1.0 if self.now == self.recorded else self.now / self.recorded if self.recorded else math.inf

    @property
    def equal(self) -> bool:
        """Whether a number differs by less than 1e-9 of it, or a text not at all."""
        return self.now == self.recorded if self.ratio is None else abs(self.ratio - 1) <= EQUAL


def changes(now: Cells, recorded: Cells) -> list[Change]:
    """Each quantity of the cells that are on both sides."""
    return [
        Change(cell, quantity, numbers.get(quantity), recorded[cell].get(quantity))
        for cell, numbers in now.items()
        if cell in recorded
        for quantity in dict.fromkeys((*recorded[cell], *numbers))
    ]


def compare(now: Cells, recorded: Cells) -> tuple[Table, Table, list[str]]:
    """A line for each quantity of each part, one for each change, and a sentence for each reason to fail."""
    wrong, ratios, quantities = [], defaultdict[tuple[str, str], list[float]](list), changes(now, recorded)
    for names, what in (
        (now.keys() - recorded, "have no record: see --record"),
        (recorded.keys() - now, "are missing"),
    ):
        wrong += [f"{len(names)} cells {what}; the first is {min(names)}"] if names else []
    for change in quantities:
        if change.ratio is not None:
            ratios[change.cell.split("/")[0], change.quantity].append(change.ratio)
            if abs(change.ratio - 1) > NUMBER:
                wrong.append(f"{change.cell}: {change.quantity} differs by {100 * (change.ratio - 1):+.2f} %")
        elif isinstance(change.recorded, float | int):
            wrong.append(f"{change.cell}: there is no {change.quantity} any more")
    lines = []
    for (part, quantity), values in ratios.items():
        mean = math.exp(sum(map(math.log, values)) / len(values)) if min(values) > 0.0 else 0.0
        equal, furthest = (
            sum(abs(value - 1) <= EQUAL for value in values),
            max(values, key=lambda value: abs(value - 1)),
        )
        lines.append([part, quantity, f"{len(values)}", f"{equal}", f"{mean:.6f}", f"{furthest:.6f}"])
        if abs(mean - 1) > MEAN:
            wrong.append(f"{part}: {quantity} differs by {100 * (mean - 1):+.2f} % in the mean")
    listed = [
        [change.cell, change.quantity, f"{change.now}", f"{change.recorded}", f"{change.ratio or ''}"]
        for change in quantities
        if not change.equal
    ]
    return lines, listed, wrong


@dataclass(frozen=True)
class Golden:
    """Compute, and compare with the record."""

    record: bool = False
    """keep what is computed as the record, for comparison from now on"""
    cells: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PREFIX")] = ("",)
    """only cells whose names begin so, such as plans/MLP"""
    file: Path = RECORD
    """the record"""
    workers: int | None = None
    """processes; all cores if not given"""


def selected(prefixes: Sequence[str]) -> list[str]:
    """The groups that have cells whose names begin with one of the prefixes."""
    return [
        group
        for group in GROUPS
        if any(f"{group}/".startswith(prefix) or prefix.startswith(f"{group}/") for prefix in prefixes)
    ]


def main(config: Golden) -> int:
    """Print the tables; the exit code."""
    groups = selected(config.cells)
    if not groups:
        print(
            f"error: no cell begins with {' or '.join(config.cells)}; groups are {', '.join(GROUPS)}", file=sys.stderr
        )
        return 2
    computed = measure_cells(groups, compute, "simulating", workers=config.workers)
    skipped = [group for group in groups if computed[group] is None]

    def wanted(cells: Cells) -> Cells:
        """Those that are compared."""
        return {
            cell: numbers
            for cell, numbers in cells.items()
            if cell.startswith(tuple(config.cells)) and not any(f"{cell}/".startswith(f"{group}/") for group in skipped)
        }

    now = wanted({cell: numbers for group in groups for cell, numbers in (computed[group] or {}).items()})
    kept: Cells = json.loads(config.file.read_text()) if config.file.is_file() else {}
    recorded = wanted(kept)
    lines, listed, wrong = compare(now, recorded)
    print(markdown([["part", "quantity", "numbers", "equal", "mean ratio", "furthest"], *lines]))
    if listed:
        print(f"\n{markdown([['cell', 'quantity', 'now', 'recorded', 'ratio'], *listed])}")
    print("", *(f"skipped, as its data is not there: {group}" for group in skipped), *wrong, sep="\n")
    if config.record:
        kept = {cell: numbers for cell, numbers in kept.items() if cell not in recorded} | now
        save({cell: kept[cell] for group in GROUPS for cell in kept if f"{cell}/".startswith(f"{group}/")}, config.file)
        print(f"recorded in {config.file.name}")
        return 0
    return int(bool(wrong))


def save(cells: Cells, path: Path) -> None:
    """Write a record with a line for each cell."""
    lines = (f"{json.dumps(cell)}: {json.dumps(numbers)}" for cell, numbers in cells.items())
    write_text("{\n" + ",\n".join(lines) + "\n}\n", path)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Golden, description=__doc__)))
