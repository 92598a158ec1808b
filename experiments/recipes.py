"""How the checkpoint that Placeto ships was made: one recipe, one seed.

python -m experiments.recipes [--out runs/pretrained]

One policy is trained on graphs of many families, each on clusters of 2 to 32 devices with links, kinds, memory and
numbers of devices drawn at random, to predict the exact effects of single moves, of groups, of joined groups and of
parts of groups, in states that episodes and annealing have met. It is judged on validation graphs. `ptb`,
`inception_v3`, `bert`, `gnmt-4` and `gnmt-8` are never trained on. The checkpoint keeps what a placer and fine-tuning
need: settings and parameters, those at the end. Beside it stands the report of its training. Run again after an
interruption: it goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from experiments.command import command
from experiments.harness import problem_of
from experiments.tables import machine, markdown
from placeto.placers import resolve_graph
from placeto.plumbing.progress import ProgressBar
from placeto.problem.cluster import Cluster, Device, Link, Topology
from placeto.problem.cluster.boards import A100, H100, P100, V100
from placeto.problem.costs import load_costs
from placeto.problem.dtypes import DTYPES
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from placeto.training.checkpoint import FILE_NAME, load_checkpoint, save_checkpoint
from placeto.training.config import LearningConfig, TrainConfig
from placeto.training.trainer import train

KINDS = (P100, V100, A100, H100)
BANDWIDTH = 3e9, 3e11  # bytes/s, drawn evenly in its logarithm: from slow Ethernet to NVSwitch
LATENCY_US = 5.0, 50.0
SPEED = 0.4, 2.5  # of a cluster's second kind of devices, against the first
DEVICES = 2, 32  # drawn evenly in its logarithm
FEW = 8  # devices above which most clusters are of several hosts, and each device has one link out
_MIXED, _HOSTS, _MANY_HOSTS = 0.3, 0.3, 0.7  # share of the clusters with two kinds of devices, and with several hosts
_TIGHT, _MEMORY = 0.2, (1.2, 2.5)  # share of the clusters with little memory: so much over what one device would need
ROOFLINE = 3  # every so many problems has roofline costs, the others have efficiencies
_SLOWER = 2.0, 10.0  # how many times the network between hosts is slower than the links within
CHECKPOINT = "pretrained.safetensors"  # its name in the folder of the recipe


@dataclass(frozen=True)
class Recipe:
    """Train the policy that comes with the package, on graphs of many families on many clusters."""

    out: Path = Path("runs/pretrained")
    """folder for the training run, the small checkpoint (pretrained.safetensors) and the report (pretrained.md)"""
    graphs: tuple[str, ...] = (
        "cifar10:24",
        "nmt:24",
        "resnet:6",
        "rnnlm-2:3",
        "rnnlm-4:3",
        "transformer_xl-2:3",
        "transformer_xl-4:3",
        "wavenet:4",
        "nasnet:6",
        "amoebanet:6",
        "gnmt-2:3",
        "llama:3",
        "unet:6",
        "moe:6",
    )
    """FAMILY:COUNT, the first so many training graphs of a family"""
    validation: tuple[str, ...] = ("cifar10:4", "nmt:4", "resnet:1", "wavenet:1", "unet:2", "moe:2")
    """FAMILY:COUNT, the first so many validation graphs of a family"""
    presets: tuple[str, ...] = ("4xv100", "8xh100", "2xv100", "2x8xh100")
    """clusters on which the graphs are trained in turn, beside those drawn at random"""
    random_clusters: int = 2
    """of each training graph"""
    seed: int = 0
    """of the clusters and of the training"""
    training: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            "",
            iterations=1200,
            validate_every=100,
            save_every=25,
            learning=LearningConfig(graphs=16, supervised_moves=4, labels=32, replay=20_000, average=0.98),
        )
    )
    """the training run; its directory and seed are set from the above"""


def random_cluster(random: np.random.Generator, name: str) -> Cluster:
    """2 to 32 devices of one kind or two, on one host or up to four, with links drawn at random."""
    kind = KINDS[random.integers(len(KINDS))]
    count = round(math.exp(random.uniform(*np.log(DEVICES))))
    others = int(random.integers(1, count)) if random.random() < _MIXED else 0
    factor = math.exp(random.uniform(*np.log(SPEED)))
    devices = [_scaled(kind, 1.0)] * (count - others) + [_scaled(kind, factor)] * others
    named = tuple(replace(device, name=f"gpu:{number}") for number, device in enumerate(devices))
    link = Link(math.exp(random.uniform(*np.log(BANDWIDTH))), math.exp(random.uniform(*np.log(LATENCY_US))))
    slower = math.exp(random.uniform(*np.log(_SLOWER)))
    mode = ("egress", "pair")[random.integers(2)] if count <= FEW else "egress"
    if count > 3 and random.random() < (_HOSTS if count <= FEW else _MANY_HOSTS):
        several = 2 if count <= FEW else int(random.choice([2, 4]))
        hosts = tuple((count // several + (host < count % several),) for host in range(several))
        topology = Topology(hosts, island=link, network=Link(link.bandwidth / slower, link.latency_us + 20.0))
    else:
        topology = Topology(((count,),), island=link)
    return Cluster.from_topology(name, named, topology, link=mode)


def _random_problem(random: np.random.Generator, graph: str, name: str, costs: str) -> PlacementProblem:
    """A graph on a cluster drawn at random, of which some have hardly the memory."""
    problem = PlacementProblem(resolve_graph(graph)[1], random_cluster(random, name), load_costs(costs))
    share = random.uniform(*_MEMORY) / problem.num_devices
    if random.random() >= _TIGHT:
        return problem
    memory = int(share * simulate(problem, np.zeros(problem.num_ops, np.int64)).peak_memory[0])
    devices = tuple(replace(device, memory=memory) for device in problem.cluster.devices)
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def _scaled(device: Device, factor: float) -> Device:
    kind = device.kind if factor == 1.0 else f"{device.kind}*{factor:.2f}"
    flops = {dtype: device.peak(dtype) * factor for dtype in DTYPES}
    return replace(device, kind=kind, flops=flops, memory_bandwidth=device.memory_bandwidth * factor)


def training_problems(recipe: Recipe) -> dict[str, PlacementProblem]:
    """Each training graph on one preset and on clusters of its own, at either costs."""
    random = np.random.default_rng(recipe.seed)
    problems = {}
    for number, graph in enumerate(_names(recipe.graphs, "train")):
        preset = recipe.presets[number % len(recipe.presets)]
        problems[f"{graph} on {preset}"] = problem_of(graph, preset)
        for _ in range(recipe.random_clusters):
            costs = "efficiency" if len(problems) % ROOFLINE else "roofline"
            problem = _random_problem(random, graph, f"random {len(problems)}", costs)
            problems[f"{graph} on {problem.cluster.name}"] = problem
    return problems


def validation_problems(recipe: Recipe) -> dict[str, PlacementProblem]:
    """The validation graphs on the presets in turn."""
    names = enumerate(_names(recipe.validation, "validation"))
    return {name: problem_of(name, recipe.presets[number % len(recipe.presets)]) for number, name in names}


def _names(texts: tuple[str, ...], split: str) -> Iterator[str]:
    for text in texts:
        family, _, count = text.partition(":")
        yield from (f"{family}:{split}:{index}" for index in range(int(count)))


def report(recipe: Recipe, problems: Mapping[str, PlacementProblem], numbers: Mapping[str, float], hours: float) -> str:
    """What the training was, as markdown."""
    devices = np.bincount([problem.num_devices for problem in problems.values()])
    lines = [
        ["number", ""],
        ["training graphs, each on several clusters", f"{len(set(_names(recipe.graphs, 'train')))}"],
        ["training problems", f"{len(problems)}"],
        ["of them on 2, 3, ... devices", ", ".join(str(count) for count in devices[2:])],
        ["iterations", f"{recipe.training.iterations}"],
        ["placements simulated", f"{numbers['placements/simulated']:.0f}"],
        ["hours", f"{hours:.2f}"],
        ["makespan of one pass over groups / best device, validation", f"{numbers['validation/best_met']:.4f}"],
    ]
    return "\n".join([f"Seed {recipe.seed}; {machine()}.", "", markdown(lines), ""])


def main(recipe: Recipe) -> Path:
    """Train, and write the small checkpoint with its report; returns its path."""
    training = replace(recipe.training, out=str(recipe.out / "run"), seed=recipe.seed)
    problems = training_problems(recipe)
    resume = (recipe.out / "run" / FILE_NAME).is_file()
    with ProgressBar("training", total=1.0) as bar:
        numbers = train(training, problems, validation_problems(recipe), resume=resume, report=bar.update)
    saved = load_checkpoint(training.out)
    small = recipe.out / CHECKPOINT
    # a pass over groups, which validates, says nothing of their parts: the average at the end, not what validated best
    kept = {"placer": saved["placer"], "config": saved["config"] | {"out": ""}, "best_parameters": saved["average"]}
    save_checkpoint(kept, small)
    text = report(recipe, problems, numbers, saved["elapsed"] / 3600)
    (recipe.out / "pretrained.md").write_text(text)
    print(f"{small}: {small.stat().st_size / 1e6:.2f} MB\n\n{text}")
    return small


if __name__ == "__main__":
    command(main, Recipe, "recipes", __doc__)
