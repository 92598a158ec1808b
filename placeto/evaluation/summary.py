"""What the rows of an evaluation say about each placer: a table, and curves of makespan against budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from placeto.simulator.tool_steps.data_parallel import ratio

Row = dict[str, Any]
COLUMNS = ("placer", "/ one device", "/ best known", "/ lower bound", "wins", "worst", "fits", "simulations", "seconds")
_TIE = 1e-9  # relative difference up to which makespans are equal


@dataclass(frozen=True)
class Summary:
    """One placer over all graphs and seeds; means are over the rows, all ratios are of makespans."""

    placer: str
    relative: float  # mean ratio to the best single device, of graphs that one device holds; NaN if there are none
    spread: float  # standard deviation over seeds of `relative`; 0 with one seed
    to_best: float  # mean ratio to the best makespan of any placer and seed on the same graph
    to_bound: float  # mean ratio to the lower bound
    wins: int  # graphs on which the placer's mean over seeds is the smallest; ties count for all
    worst: float  # largest ratio to the best single device, of the same graphs as `relative`
    fits: int  # rows whose placement fits into memory
    rows: int
    graphs: int
    simulations: float  # mean
    seconds: float  # mean


def summarize(rows: Sequence[Row]) -> list[Summary]:
    """Return a summary for each placer, in the order in which placers appear.

    Placements that don't fit count in the ratios as they are. If others fit, they are never best known, and never win.
    """
    graphs = list(dict.fromkeys((row["graph"], row["cluster"]) for row in rows))
    best = {graph: _best([row for row in rows if (row["graph"], row["cluster"]) == graph]) for graph in graphs}
    winners = _winners(rows)
    return [_summarize(placer, rows, best, winners) for placer in dict.fromkeys(row["placer"] for row in rows)]


def markdown_table(summaries: Sequence[Summary]) -> str:
    """Return the summaries as a markdown table, best mean first; "-" if no device holds a graph alone."""
    cells = [list(COLUMNS)]
    for s in sorted(summaries, key=lambda s: s.to_best if math.isnan(s.relative) else s.relative):
        spread = f" ± {s.spread:.3f}" if s.spread > 0 else ""
        held = ["-", "-"] if math.isnan(s.relative) else [f"{s.relative:.3f}{spread}", f"{s.worst:.3f}"]
        ratios = [held[0], f"{s.to_best:.3f}", f"{s.to_bound:.3f}"]
        counts = [f"{s.wins}/{s.graphs}", held[1], f"{s.fits}/{s.rows}", f"{s.simulations:.0f}"]
        cells.append([s.placer, *ratios, *counts, f"{s.seconds:.3f}"])
    widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [
        [cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        for row in [cells[0], rule, *cells[1:]]
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mean_curves(
    rows: Sequence[Row], against: Literal["simulations", "seconds"], num_points: int = 200
) -> dict[str, list[tuple[float, float]]]:
    """Return, by placer, the mean over its rows of the best relative makespan so far.

    A curve is a list of points (simulations or seconds, makespan).

    Rows need a "history"; those of graphs that no single device holds are left out. A curve begins where every row has
    a placement, ends where the longest row does, and has up to `num_points` points, evenly spaced on a log scale; rows
    that end earlier stay at their last value.
    """
    column = {"simulations": 0, "seconds": 1}[against]
    curves: dict[str, list[tuple[float, float]]] = {}
    for placer in dict.fromkeys(row["placer"] for row in rows):
        placer_rows = [row for row in rows if row["placer"] == placer and row["history"] and fits_one_device(row)]
        if not placer_rows:
            continue
        histories = [np.array(row["history"], float) for row in placer_rows]
        first = max(history[0, column] for history in histories)
        last = max(first, *(row[against] for row in placer_rows))
        grid = np.unique(np.geomspace(first, last, num_points)) if 0 < first < last else np.unique([first, last])
        grid = np.clip(np.unique(np.round(grid)) if column == 0 else grid, first, last)
        mean = np.zeros(len(grid))
        for row, history in zip(placer_rows, histories, strict=True):
            seen = np.searchsorted(history[:, column], grid, side="right") - 1
            one_device = row["makespan_us"] / row["relative"]
            mean += np.array([ratio(us, one_device) for us in history[seen, 2].tolist()]) / len(placer_rows)
        curves[placer] = list(zip(grid.tolist(), mean.tolist(), strict=True))
    return curves


def fits_one_device(row: Row) -> bool:
    """Whether some single device holds the row's graph, so that `relative` is a ratio; True for older rows."""
    return bool(row.get("single_fits", True))


def _best(rows: Sequence[Row]) -> float:
    """Return the smallest makespan among the rows that fit, or among all rows if none does."""
    fitting = [row["makespan_us"] for row in rows if row["fits"]]
    return min(fitting or [row["makespan_us"] for row in rows])


def _winners(rows: Sequence[Row]) -> set[tuple[str, str, str]]:
    """Return (graph, cluster, placer) of each win."""
    cells: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        cells.setdefault((row["graph"], row["cluster"]), {}).setdefault(row["placer"], []).append(row)
    winners = set()
    for cell, placers in cells.items():
        scores = {
            placer: (not all(row["fits"] for row in own), float(np.mean([row["makespan_us"] for row in own])))
            for placer, own in placers.items()
        }
        unfit, smallest = min(scores.values())
        most = unfit, smallest * (1 + _TIE)
        winners |= {(*cell, placer) for placer, score in scores.items() if score <= most}
    return winners


def _summarize(
    placer: str,
    rows: Sequence[Row],
    best: dict[tuple[str, str], float],
    winners: set[tuple[str, str, str]],
) -> Summary:
    placer_rows = [row for row in rows if row["placer"] == placer]
    relative = np.array([row["relative"] for row in placer_rows if fits_one_device(row)])
    seeds = np.array([row["seed"] for row in placer_rows if fits_one_device(row)])
    per_seed = [relative[seeds == seed].mean() for seed in np.unique(seeds)]
    return Summary(
        placer=placer,
        relative=float(relative.mean()) if len(relative) else math.nan,
        spread=float(np.std(per_seed, ddof=1)) if len(per_seed) > 1 else 0.0,
        to_best=float(np.mean([ratio(row["makespan_us"], best[row["graph"], row["cluster"]]) for row in placer_rows])),
        to_bound=float(np.mean([ratio(row["makespan_us"], row["lower_bound_us"]) for row in placer_rows])),
        wins=sum(winner[2] == placer for winner in winners),
        worst=float(relative.max()) if len(relative) else math.nan,
        fits=sum(row["fits"] for row in placer_rows),
        rows=len(placer_rows),
        graphs=len({(row["graph"], row["cluster"]) for row in placer_rows}),
        simulations=float(np.mean([row["simulations"] for row in placer_rows])),
        seconds=float(np.mean([row["seconds"] for row in placer_rows])),
    )
