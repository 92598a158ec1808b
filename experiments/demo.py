"""``make demo``: train on one family for a few minutes, place unseen graphs, compare, and show what came out.

python -m experiments.demo --out demo [--minutes 2.5]
"""

from __future__ import annotations

import shlex
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from experiments.command import command
from placeto.evaluation.comparison import PlacerSpec, Row, evaluate, parse_spec
from placeto.evaluation.summary import markdown_table, summarize
from placeto.formats.gantt import gantt_figure, save_figure
from placeto.formats.placement import save_placement
from placeto.placers import load_placer, load_split, zero_shot
from placeto.plumbing.progress import ProgressBar
from placeto.problem.cluster import load_cluster
from placeto.problem.files import write_text
from placeto.problem.problem import PlacementProblem
from placeto.training.checkpoint import UNTRAINED
from placeto.training.trainer import TrainConfig, train

CHEAP = ("single", "random", "metis", "expert", "heft", "etf")
ZERO_SHOT = "placeto zero-shot"
SEARCHES = ("placeto@1000", "anneal@1000", "anneal@10000")
CONTROLS = {"untrained@1000": 1000, "untrained zero-shot": None}  # the same network before training, by simulations
PLACERS = (*CHEAP, "hillclimb@1000", *SEARCHES, f"{ZERO_SHOT}=placeto@pass")


@dataclass(frozen=True)
class DemoConfig:
    """Train a policy, place graphs that it has never seen, compare with the heuristics."""

    out: Path = Path("demo")
    """everything is written here; an earlier demo there is replaced"""
    family: str = "cifar10"
    """graph family"""
    cluster: str = "4xv100"
    """to place on"""
    minutes: float = 2.5
    """of training"""
    test_graphs: int = 16
    """how many unseen graphs to place"""
    seed: int = 0
    """of the training"""


def main(config: DemoConfig) -> list[Row]:
    """Run the demo; returns the rows of the comparison."""
    began = time.perf_counter()
    run = config.out / "run"
    if run.exists():
        shutil.rmtree(run)
    run.mkdir(parents=True)
    cluster = load_cluster(config.cluster)
    print(f"1. Train on {config.family}, cluster {cluster.name}, for {config.minutes:g} minutes.", flush=True)
    problems = {
        split: {name: PlacementProblem(graph, cluster) for name, graph in load_split(config.family, split).items()}
        for split in ("train", "validation")
    }
    training = TrainConfig(out=str(run), minutes=config.minutes, seed=config.seed)
    with ProgressBar("training", total=1.0) as bar:
        train(training, problems["train"], problems["validation"], report=bar.update)

    print(f"2. Place {config.test_graphs} unseen graphs and compare.", flush=True)
    graphs = load_split(config.family, "test", config.test_graphs)
    specs = [parse_spec(text, run, None, None) for text in PLACERS]
    specs += [PlacerSpec(label, str(run / UNTRAINED), budget) for label, budget in CONTROLS.items()]
    with ProgressBar("evaluating", total=len(graphs) * len(specs)) as bar:
        rows = evaluate(
            graphs,
            cluster,
            specs,
            out=config.out / "table.json",
            report=bar.after(0),
        )
    table = markdown_table(summarize(rows))
    write_text(table + "\n", config.out / "table.md")
    print(f"\n{table}\n")
    print(_verdict(rows))

    name, graph = next(iter(graphs.items()))
    problem = PlacementProblem(graph, cluster)
    result = zero_shot(load_placer(run), problem)
    save_placement(result, config.out / "placement.json")
    title = f"{name} on {cluster.name}, placeto zero-shot"
    save_figure(gantt_figure(result.schedule(), title), config.out / "gantt.png")
    print(_what_next(config, name, time.perf_counter() - began))
    return rows


def _verdict(rows: list[Row]) -> str:
    """How the zero-shot pass and search compare with the best cheap placer of each graph, and with long annealing."""
    relative: dict[str, dict[str, float]] = {}
    for row in rows:
        relative.setdefault(row["graph"], {})[row["placer"]] = row["relative"]
    cheap = sum(min(of[placer] for placer in CHEAP) for of in relative.values()) / len(relative)
    gains = {
        placer: 100.0 * (1.0 - sum(of[placer] for of in relative.values()) / len(relative) / cheap)
        for placer in (ZERO_SHOT, *SEARCHES, *CONTROLS)
    }
    untrained_search, untrained_pass = (f"{gains[control]:.1f} %" for control in CONTROLS)
    searches = ", ".join(f"{placer} {gains[placer]:.1f} %" for placer in SEARCHES)
    return (
        f"Against the best, per graph, of {', '.join(CHEAP)} (mean {cheap:.3f} of one device),\n"
        f"the policy's one pass over graphs that it has never seen is {gains[ZERO_SHOT]:.1f} % faster on the mean;\n"
        f"search, with as many simulations as it says: {searches}.\n"
        f"The same network before training: one pass {untrained_pass}, search {untrained_search}.\n"
    )


def _what_next(config: DemoConfig, name: str, seconds: float) -> str:
    out = shlex.quote(str(config.out))
    on = f"--cluster {config.cluster}"
    return f"""\
Done in {seconds / 60:.1f} minutes. Written to {config.out}/:
  run/            checkpoint and tensorboard curves
  table.md        the table above; table.json has its rows
  placement.json  placement of {name}
  gantt.png       its schedule

What to type next (after `source .venv/bin/activate`):
  tensorboard --logdir {out}/run
  placeto place {config.family}:test:{config.test_graphs - 1} {on} --checkpoint {out}/run --plot {out}/p.png
  placeto simulate {name} {on} --placement {out}/placement.json --trace {out}/trace.json   (open it at ui.perfetto.dev)
  placeto list placers"""


if __name__ == "__main__":
    command(main, DemoConfig, "demo", __doc__)
