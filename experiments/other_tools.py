"""Do torchtitan and Megatron-LM read what is exported for them, and does torchtitan train it as the whole model?

python -m experiments.other_tools --torchtitan titan/bin/python --megatron megatron/bin/python

The interpreters are those of environments of their own, with torchtitan 0.3.0 and megatron-core 0.16.1 beside torch.
torchtitan's own code cuts a small language model into the stages, reads the schedule, and runs a step on as many
processes as there are ranks, with gloo on the CPU. Each rank computes the whole model's gradients beside. The
configuration of Megatron-LM's transformers reads the layout, and says which layers each rank has.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from experiments import titan_step
from experiments.command import command
from experiments.tables import markdown
from placeto.cli.shared.graphs import capture_factory
from placeto.cli.shared.options import CaptureOptions
from placeto.errors import PlacementError
from placeto.formats.exports.layer_tools import megatron
from placeto.formats.exports.torchtitan import TorchTitan, save_torchtitan, torchtitan
from placeto.formats.exports.whole_layers import whole_layers
from placeto.heuristics.pipelines.plans import make_plan
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.plan import Stages
from placeto.simulator.schedule import Schedule, simulate

BATCH = 24
PLANS: dict[str, tuple[Stages, int]] = {
    "straight pipeline": (((0,), (1,)), 4),
    "four stages": (((0,), (1,), (2,), (3,)), 6),
    "interleaved, 2 stages a rank": (((0,), (1,), (0,), (1,)), 4),
    "interleaved, 3 stages a rank": (((0,), (1,), (0,), (1,), (0,), (1,)), 6),
    "and back": (((0,), (1,), (1,), (0,)), 6),
    "two replicas of two stages": (((0, 1), (2, 3)), 4),
    "two replicas, interleaved": (((0, 1), (2, 3), (0, 1), (2, 3)), 4),
}
READ = """
import sys
import torch
from megatron.core.transformer.transformer_config import TransformerConfig
size, layout, layers = sys.argv[1:]
config = TransformerConfig(
    num_layers=int(layers), hidden_size=64, num_attention_heads=4, pipeline_dtype=torch.float32,
    pipeline_model_parallel_size=int(size), pipeline_model_parallel_layout=layout,
)
for rank in config.pipeline_model_parallel_layout.layout:
    print("; ".join(" ".join(layer.name for layer in stage) for stage in rank))
"""


@dataclass(frozen=True)
class OtherTools:
    """Export, read."""

    torchtitan: Path
    """the interpreter of an environment with torchtitan"""
    megatron: Path
    """the interpreter of an environment with megatron-core"""


def placed(devices: Stages, micro_batches: int) -> Schedule:
    """A plan of stages of about equal work."""
    options = CaptureOptions(micro_batches=micro_batches, settings=(f"batch={BATCH}",))
    graph = capture_factory(f"{titan_step.__file__}:net", options, "language")[0]
    problem = PlacementProblem(graph, load_cluster("4xv100"))
    return simulate(problem, make_plan(problem, devices))


def main(config: OtherTools) -> None:
    """The table."""
    head = [
        "plan",
        "micro-batches",
        "ranks",
        "torchtitan: gradients",
        "apart",
        "Megatron-LM: layout",
        "layers of ranks",
    ]
    table = [head]
    for name, (devices, micro_batches) in PLANS.items():
        schedule = placed(devices, micro_batches)
        made = torchtitan(schedule)
        number, apart = _trained(config.torchtitan, made)
        try:
            layout, ranks = _read(config.megatron, schedule)
        except PlacementError:
            layout, ranks = "refused", ""
        row = [name, str(micro_batches), str(len(made.ranks)), str(number), f"{apart:.1e}", layout, ranks]
        table.append(row)
    print(markdown(table))
    print("\nGradients are those of one step, of all ranks, beside the whole model's: the largest difference.")


def _trained(python: Path, made: TorchTitan) -> tuple[int, float]:
    """How many gradients all ranks have compared, and the largest difference."""
    with tempfile.TemporaryDirectory() as folder:
        save_torchtitan(made, Path(folder), BATCH)
        run = [str(python), "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
        run += ["--nproc-per-node", str(len(made.ranks)), titan_step.__file__, folder]
        said = _said(run)
    found = re.findall(r"stage \d+: (\d+) gradients, off by (\S+) at most", said)
    return sum(int(number) for number, _ in found), max(float(apart) for _, apart in found)


def _read(python: Path, schedule: Schedule) -> tuple[str, str]:
    """The layout, and the layers of each rank as Megatron-LM has read them."""
    script = megatron(whole_layers(schedule, "Megatron-LM"), BATCH)
    words = dict(re.findall(r"^  --(\S+) '?([^'\n]+)'?$", script, re.MULTILINE))
    layout = words["pipeline-model-parallel-layout"]
    size, layers = words["pipeline-model-parallel-size"], words["num-layers"]
    ranks = _said([str(python), "-W", "ignore", "-c", READ, size, layout, layers]).splitlines()
    counts = [" + ".join(str(stage.split().count("decoder")) for stage in rank.split(";")) for rank in ranks]
    return f"`{layout}`".replace("|", "\\|"), ", ".join(counts)


def _said(run: list[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(run, capture_output=True, text=True, check=False, env=environment | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{run[0]} has failed:\n{done.stderr[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    command(main, OtherTools, "other_tools", __doc__, "Nothing is timed.")
