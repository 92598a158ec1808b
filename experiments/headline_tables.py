"""The tables of `experiments.headline`, of the cells that are there.

Legend: a place is a graph on a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.headline_placers import (
    COLOCRL,
    FIXED,
    GROUPER,
    ON_IT,
    PLACERS,
    UNSEEN,
    ZERO_SHOT,
)
from experiments.tables import Table, mean_and_spread
from experiments.trajectories import Trajectory

Place = tuple[str, str]  # graph, cluster
Runs = Mapping[Place, Mapping[str, Sequence[Trajectory]]]
"""The seeds of each placer at each place."""
WITHIN = 0.01  # of the best of a reference
GDP_FAMILIES = ("inception_v3", "amoebanet", "transformer_xl", "wavenet", "rnnlm", "gnmt-2")
"""Those of the mean in the GDP paper."""
REFERENCES = {"ColocRL": COLOCRL, "the grouper": GROUPER}
LEVEL = 0.001  # relative: what differs by less is level


def by_place(found: Sequence[Trajectory]) -> Runs:
    """Trajectories by place, then by placer."""
    runs: dict[Place, dict[str, list[Trajectory]]] = {}
    for one in found:
        runs.setdefault((one.cell.graph, one.cell.cluster), {}).setdefault(one.cell.placer, []).append(one)
    return runs


def mean_us(seeds: Sequence[Trajectory]) -> float:
    """Mean of the best makespans of the seeds; inf without any."""
    return float(np.mean([one.best_us for one in seeds])) if seeds else math.inf


def reference(runs: Mapping[str, Sequence[Trajectory]], names: Sequence[str]) -> Trajectory | None:
    """The run of several placers that found the best; of the placers that there are."""
    known = [one for name in names for one in runs.get(name, ()) if one.points]
    return min(known, key=lambda one: one.best_us, default=None)


def reached(seeds: Sequence[Trajectory], best: Trajectory) -> tuple[float, float]:
    """Medians over seeds of placements and core seconds until a makespan is within `WITHIN` of the best run's.

    Of an even number of seeds the larger of the two in the middle, so that it never is between a number and inf.
    """
    both = np.array([one.reach((1.0 + WITHIN) * best.best_us) for one in seeds])
    placements, core = (float(np.sort(column)[len(column) // 2]) for column in both.T)
    return placements, core


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers; NaN without any.

    >>> round(geometric_mean([1.0, 4.0]), 9)
    2.0
    """
    return float(np.exp(np.mean(np.log(values)))) if len(values) else math.nan


def makespans(runs: Runs, cluster: str) -> Table:
    """A line for each placer, a column for each graph on the cluster: makespan / expert, a mean over seeds.

    The last column is the geometric mean over the graphs: its mean over seeds, ± its standard deviation.
    """
    places = [place for place in runs if place[1] == cluster]
    lines = _head([place[0] for place in places], "geometric mean")
    for placer in PLACERS:
        values = [_to_expert(runs[place], placer) for place in places]
        of_seeds = [geometric_mean(of_seed) for of_seed in zip(*values, strict=False)]  # seeds that all graphs have
        mean = mean_and_spread(of_seeds, ".3f") if of_seeds else ""
        lines.append([placer, *(f"{np.mean(value):.3f}" if value else "" for value in values), mean])
    return lines


def _to_expert(runs: Mapping[str, Sequence[Trajectory]], placer: str) -> list[float]:
    """Of each seed; nothing if a placer is missing."""
    if placer not in runs or "expert" not in runs:
        return []
    return [one.best_us / mean_us(runs["expert"]) for one in runs[placer]]


def until(runs: Runs, cluster: str, names: Sequence[str]) -> Table:
    """Placements and core seconds until each placer is within `WITHIN` of the best of a reference, at each graph."""
    places = [place for place in runs if place[1] == cluster]
    lines = _head([place[0] for place in places], "never")
    for placer in PLACERS:
        if placer in FIXED:
            continue
        entries, never = [], 0
        for place in places:
            best, seeds = reference(runs[place], names), runs[place].get(placer, ())
            if best is None or not seeds:
                entries.append("")
                continue
            placements, core = reached(seeds, best)
            never += placements == math.inf
            entries.append("never" if placements == math.inf else f"{placements:.0f}; {core:.3g} s")
        lines.append([placer, *entries, f"{never} of {sum(entry != '' for entry in entries)}"])
    return lines


def _head(graphs: Sequence[str], last: str) -> list[Sequence[str]]:
    head = ["placer", *graphs, last]
    return [head]


def claims(runs: Runs) -> Table:
    """What the papers claim of theirs, and what each placer reaches here by the same measure."""
    head = ["placer", *(f"placements, times fewer than {name}: mean (most; never)" for name in REFERENCES)]
    head += ["below the expert, GDP's six models", "below the grouper", "core seconds, times fewer than the grouper"]
    head += ["below the expert on NMT"]
    lines: list[Sequence[str]] = [head]
    lines.append(["as published", "at most 6.1", "", "16 %", "9.2 %", "15", "28.41 % (at most)"])
    for placer in PLACERS:
        fewer = [_fewer(runs, placer, names, 0) for names in REFERENCES.values()]
        six = _below(runs, placer, ("expert",), GDP_FAMILIES)
        nmt = _below(runs, placer, ("expert",), ("nmt",))
        grouper = _below(runs, placer, GROUPER, None)
        lines.append([placer, *fewer, six, grouper, _fewer(runs, placer, GROUPER, 1), nmt])
    return lines


def _fewer(runs: Runs, placer: str, names: Sequence[str], what: int) -> str:
    """How many times fewer placements (0) or core seconds (1) than the best run of a reference needs to be as near.

    What is never so good counts with all that it spent, as if it had reached it at its end.
    """
    if placer in FIXED or placer in names:
        return ""
    times, never = [], 0
    for own in runs.values():
        best = reference(own, names)
        if best is None or placer not in own:
            continue
        ours, theirs = reached(own[placer], best)[what], best.reach((1.0 + WITHIN) * best.best_us)[what]
        if ours == math.inf:
            never += 1
            ours = max((one.cell.budget, one.core_seconds)[what] for one in own[placer])
        times.append(theirs / max(ours, 1e-9))
    return f"{geometric_mean(times):.3g} ({max(times):.3g}; {never} of {len(times)})" if times else ""


def _below(runs: Runs, placer: str, names: Sequence[str], families: Sequence[str] | None) -> str:
    """By how much the geometric mean of the makespans is below that of another placer, the better of several."""
    ratios = []
    for (graph, _), own in runs.items():
        if families is not None and graph.partition(":")[0] not in families:
            continue
        others = [mean_us(own[name]) for name in names if name in own]
        if placer in own and others and placer not in names:
            ratios.append(mean_us(own[placer]) / min(others))
    return f"{100.0 * (1.0 - geometric_mean(ratios)):.1f} %" if ratios else ""


def worse(runs: Runs, placer: str) -> list[str]:
    """Where another placer ends with a shorter makespan than this one: a sentence each."""
    lines = []
    for (graph, cluster), own in runs.items():
        if placer not in own:
            continue
        ours = mean_us(own[placer])
        better = {name: mean_us(seeds) / ours - 1.0 for name, seeds in own.items() if name != placer}
        shorter = sorted((change, name) for name, change in better.items() if change < -LEVEL)
        if shorter:
            listed = ", ".join(f"{name} {-100.0 * change:.1f} %" for change, name in shorter)
            lines.append(f"{graph} on {cluster}: {listed}")
    return lines


def unseen(runs: Runs) -> Table:
    """A line for each family: what a policy that never saw a graph answers beside one that was trained on it."""
    head = ["family", "graphs", *(f"{name} / expert" for name in ZERO_SHOT), f"{UNSEEN} / {ON_IT}"]
    lines: list[Sequence[str]] = [head]
    for family, places in families(runs).items():
        complete = [own for own in places if own.keys() >= {"expert", *ZERO_SHOT}]
        means = [geometric_mean([_ratio(own, name, "expert") for own in complete]) for name in ZERO_SHOT]
        both = geometric_mean([_ratio(own, UNSEEN, ON_IT) for own in complete])
        if complete:
            lines.append([family, f"{len(complete)}", *(f"{mean:.3f}" for mean in means), f"{both:.3f}"])
    return lines


def families(runs: Runs) -> dict[str, list[Mapping[str, Sequence[Trajectory]]]]:
    """The places of each family."""
    found: dict[str, list[Mapping[str, Sequence[Trajectory]]]] = {}
    for (graph, _), own in runs.items():
        found.setdefault(graph.partition(":")[0], []).append(own)
    return found


def _ratio(runs: Mapping[str, Sequence[Trajectory]], placer: str, other: str) -> float:
    return mean_us(runs[placer]) / mean_us(runs[other])


def distributions(runs: Runs) -> dict[str, dict[str, list[float]]]:
    """By family and placer, the makespans of all graphs, relative to one device."""
    found: dict[str, dict[str, list[float]]] = {}
    for family, places in families(runs).items():
        ratios = {name: [_ratio(own, name, "one device") for own in places if name in own] for name in ZERO_SHOT}
        found[family] = {name: values for name, values in ratios.items() if values}
    return found


def distribution(values: Sequence[float]) -> list[tuple[float, float]]:
    """Points (value, share of the values up to there), from 0 to 1.

    >>> distribution([3.0, 1.0])
    [(1.0, 0.0), (1.0, 0.5), (3.0, 1.0)]
    """
    ordered = sorted(values)
    return [(ordered[0], 0.0), *((value, place / len(ordered)) for place, value in enumerate(ordered, 1))]
