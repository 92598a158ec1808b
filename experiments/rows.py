"""Graphs on clusters by their names, and rows of evaluations that are kept in files.

All experiments that place graphs use these, also those that train nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path

from placeto.evaluation.comparison import Row, code_version, load_rows, save_rows
from placeto.heuristics.local_search.starts import best_cheap
from placeto.placers import resolve_graph
from placeto.problem.cluster import load_cluster
from placeto.problem.costs import load_costs
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.progress import ProgressBar
from placeto.simulator.evaluator import Evaluator, PlacementResult

CHEAP = "best cheap heuristic"


@cache
def problem_of(graph: str, cluster: str, costs: str = "efficiency") -> PlacementProblem:
    """A graph, as the command line names it, on a cluster; kept, with all that is cached for it."""
    return PlacementProblem(resolve_graph(graph)[1], load_cluster(cluster), load_costs(costs))


def place_key(graph: str, cluster: str) -> str:
    """A graph on a cluster for the keys of kept rows: names, and hashes of what they stand for and of the code."""
    problem = problem_of(graph, cluster)
    return f"{graph} {cluster} {problem.hash[:12]} {code_version()[:12]}"


def result_row(graph: str, cluster: str, label: str, seed: int, result: PlacementResult) -> Row:
    """A placer's result as a row of an evaluation, with its history."""
    problem = problem_of(graph, cluster)
    return {
        **row_head(graph, cluster, label, seed, problem),
        "makespan_us": float(result.makespan_us),
        "relative": float(result.makespan_us / problem.single_device_us),
        "fits": bool(result.fits),
        "simulations": int(result.simulations),
        "seconds": float(result.seconds),
        "history": [[int(n), float(s), float(us)] for n, s, us in result.history if math.isfinite(us)],
    }


def kept_rows(path: Path, wanted: Mapping[str, Callable[[], Row]], description: str) -> list[Row]:
    """Rows by key: those that a file has are taken from there, the others made and added to it one by one."""
    old = {row.get("key"): row for row in load_rows(path)} if path.exists() else {}
    with ProgressBar(description, total=len(wanted)) as bar:
        for key, make in wanted.items():
            if key not in old:
                old[key] = make() | {"key": key}
                save_rows(list(old.values()), path)
            bar.advance(note=key)
    return [old[key] for key in wanted]


def row_head(graph: str, cluster: str, label: str, seed: int, problem: PlacementProblem) -> Row:
    """What a row of an evaluation says of where and how something was placed."""
    where = {"graph": graph, "cluster": cluster, "placer": label, "seed": seed}
    return where | {"lower_bound_us": float(problem.lower_bound_us)}


def cheap_row(graph: str, cluster: str) -> Row:
    """The placement of the graph's best cheap heuristic, with what trying all of them takes."""
    problem = problem_of(graph, cluster)
    evaluator = Evaluator(problem, group_ops(problem))
    best_cheap(evaluator)
    return result_row(graph, cluster, CHEAP, 0, evaluator.result())


def cheap_rows(folder: Path, graphs: Iterable[str], cluster: str, description: str = "heuristics") -> list[Row]:
    """The rows of the graphs' best cheap heuristics, kept in a file of the folder."""
    wanted = {place_key(graph, cluster): partial(cheap_row, graph, cluster) for graph in graphs}
    return kept_rows(folder / "cheap.json", wanted, description)
