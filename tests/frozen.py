"""What Placeto answered before its modules were moved: makespans, trainings, a table, a checkpoint.

``python -m tests.frozen`` records them again in ``tests/data/frozen.json``, which only a change that is meant to give
other numbers may do.
"""

import contextlib
import hashlib
import io
import json
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from llvmlite.binding import get_host_cpu_name

import placeto
from graphs import FAMILIES
from placeto.cli.command import main
from placeto.problem.costs import ROOFLINE
from placeto.training.checkpoint import load_checkpoint
from tests.toys import fork_of_chains

RECORD = Path(__file__).parent / "data" / "frozen.json"
GRAPHS = {"cifar10": ("train", 1), "nmt": ("validation", 7), "ptb": ("validation", 7)}
HEURISTICS = ("single", "fastest", "random", "roundrobin", "expert", "metis", "heft", "etf", "m-topo", "m-etf", "m-sct")
SEARCHES = ("hillclimb", "ils", "anneal", "multilevel")
SMALL = ("--iterations", "2", "--learning.graphs", "2")
TRAININGS = {
    "default": ("--placer", "placeto"),
    "two stages": ("--placer", "placeto", "--learning.reinforcement", "0.5", "--learning.moves", "4",
                   "--learning.replicas", "2", "--learning.supervised-moves", "4", "--learning.supervised-replicas",
                   "2", "--learning.labels", "24", "--learning.replay", "0", "--learning.annealed", "0",
                   "--learning.parts", "0"),
    "gdp": ("--placer", "gdp", "--policy.hidden", "16", "--learning.samples", "4"),
}  # fmt: skip


def graph_file(family: str, folder: Path) -> Path:
    """A graph of a family as a file: the record depends on files and commands alone."""
    path = folder / f"{family}.json.gz"
    if not path.exists():
        placeto.save_graph(FAMILIES[family].load(*GRAPHS[family]), path)
    return path


def combinations() -> Iterator[tuple[str, str, str, int | None, int]]:
    """(graph, cluster, placer, simulations, seed), 46 of them."""
    for family, cluster in (("cifar10", "4xv100"), ("ptb", "2xk80"), ("nmt", "2xv100+2xp100")):
        for placer in HEURISTICS:
            yield family, cluster, placer, None, 0
    for family, cluster, seed in (("cifar10", "2xv100", 0), ("nmt", "4xa100", 1)):
        for placer in SEARCHES:
            yield family, cluster, placer, 120, seed
    for simulations in (0, None, 60, 300):
        yield "ptb", "4xv100", "placeto", simulations, 0
    yield "fork", "2xp100", "exact", None, 0


def makespans(folder: Path) -> dict[str, float]:
    """Makespan in microseconds of each combination."""
    found = {}
    for family, cluster, placer, simulations, seed in combinations():
        if family == "fork":
            problem = fork_of_chains(3, 2)
        else:
            graph = placeto.load_graph(graph_file(family, folder))
            problem = placeto.PlacementProblem(graph, placeto.load_cluster(cluster), ROOFLINE, "fifo")
        result = placeto.load_placer(placer)(problem, simulations=simulations, seed=seed)
        found[f"{family} {cluster} {placer} {simulations} {seed}"] = result.makespan_us
    return found


def trainings(folder: Path) -> dict[str, dict[str, Any]]:
    """Of each training: a hash of its parameters to the bit, and the sum of their magnitudes."""
    found = {}
    for name, options in TRAININGS.items():
        out = folder / name
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            _command("train", graph_file("ptb", folder), "--cluster", "2xv100", "--dispatch", "fifo", "--out", out,
                     "--costs", "roofline",
                     *SMALL, *options)  # fmt: skip
        saved = torch.load(out / "checkpoint.pt", weights_only=True)["best_parameters"]
        digest, total = hashlib.sha256(), 0.0
        for _, tensor in sorted(saved.items()):
            digest.update(tensor.numpy().tobytes())
            total += float(tensor.double().abs().sum())
        found[name] = {"bits": digest.hexdigest(), "sum": total}
    return found


def evaluation(folder: Path) -> list[list[Any]]:
    """Rows of an evaluation table: graph, placer, seed, relative makespan, simulations."""
    out = folder / "table.json"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        _command("evaluate", graph_file("ptb", folder), "--cluster", "2xv100", "--dispatch", "fifo",
                 "--placers", "etf,anneal,placeto", "--simulations", "60", "--seeds", "2", "--costs", "roofline",
                 "--processes", "1", "-o", out)  # fmt: skip
    rows = json.loads(out.read_text())["rows"]
    return [[row[key] for key in ("placer", "seed", "relative", "simulations", "fits")] for row in rows]


def checkpoint() -> str:
    """Hash of the parameters that come with the package."""
    saved = load_checkpoint("pretrained")
    digest = hashlib.sha256()
    for name, tensor in sorted(saved["best_parameters"].items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def processor() -> str:
    """Sums of floats come out alike to the bit on processors of one kind only, as the libraries take other loops."""
    return f"{platform.machine()} {get_host_cpu_name()} {torch.backends.cpu.get_cpu_capability()} {torch.__version__}"


def _command(*arguments: object) -> None:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"status {stop.code}: {arguments}") from None


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record = {
            "processor": processor(),
            "makespans": makespans(folder),
            "trainings": trainings(folder),
            "evaluation": evaluation(folder),
            "checkpoint": checkpoint(),
        }
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
