"""How far from further published steps, of other boards and models, is the table of efficiencies?

python -m experiments.held_out_steps [--out runs/held_out_steps]

Published throughputs of models and boards beside those of `cost_models`, cited: Lambda's
(lambdal/deeplearning-benchmark 0551cb7, pytorch/pytorch-train-throughput-{fp16,fp32}.csv; NVIDIA's training scripts of
ResNet-50, with channels first, and of BERT on SQuAD, which Apex' level O2 puts into 16 bits as a whole) and timm's
(huggingface/pytorch-image-models 5e7d47c, results/benchmark-train-amp-{nchw,nhwc}-pt112-cu113-rtx3090.csv). They say
samples a second. Lambda's steps are captured at the batches that it says for each board (pytorch-train-bs-*.csv
08d77c4; the A10 is taken to have that of the RTX 3090, and the H100 SXM that of the PCIe board, of equal memory). Those
of timm are captured at 64 images, and their time taken as proportional. No number of the costs comes from them, but
they were looked at while the model was chosen. In "fp32" boards with tf32 used it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.command import command
from experiments.cost_models import FEWEST, alone_ms, captured, groups_of, over_constant, summary
from experiments.harness import measure_cells
from experiments.tables import markdown
from placeto.problem.cluster import Device
from placeto.problem.cluster.boards import A10, A100, A100_40GB, H100, RTX3090, RTX4090, T4, V100
from placeto.problem.costs import EFFICIENCY, ROOFLINE


def _like(device: Device, kind: str, bandwidth: float, **tera: float) -> Device:
    return replace(
        device, kind=kind, flops={key: 1e12 * value for key, value in tera.items()}, memory_bandwidth=bandwidth
    )


# datasheets of NVIDIA: A100 80 GB PCIe, 2021; H100 PCIe, 2022; RTX A6000, 2020; RTX 6000 Ada, 2022; RTX 8000, 2018
BOARDS = {
    "V100 16 GB": V100,
    "RTX 3090": RTX3090,
    "A10": A10,
    "A100 40 GB PCIe": A100_40GB,
    "A100 80 GB PCIe": replace(A100, memory_bandwidth=1935e9),
    "A100 80 GB SXM": A100,
    "RTX 4090": RTX4090,
    "H100 PCIe": _like(H100, "h100", 2000e9, float32=51.2, tf32=378, float16=756),
    "H100 SXM": H100,
    "RTX A6000": _like(A10, "rtx-a6000", 768e9, float32=38.7, tf32=77.4, float16=154.8),
    "RTX 6000 Ada": _like(RTX4090, "rtx-6000-ada", 960e9, float32=91.1, tf32=182.1, float16=364.2),
    "RTX 8000": _like(T4, "rtx-8000", 672e9, float32=16.3, float16=130.5),
}
_MODELS = "resnet50", "squad_base", "squad_large"
_BATCHES = {  # by the boards' memory: of these models in mixed precision, then in float32 or tf32
    16: (256, 48, 16, 128, 24, 8),
    24: (448, 96, 28, 224, 48, 16),
    40: (720, 160, 48, 360, 80, 28),
    48: (928, 192, 64, 496, 96, 32),
    80: (1280, 320, 112, 640, 172, 64),
}
_MEMORY = {  # GB
    **dict.fromkeys(("RTX 3090", "A10", "RTX 4090"), 24), "V100 16 GB": 16, "A100 40 GB PCIe": 40,
    **dict.fromkeys(("RTX A6000", "RTX 6000 Ada", "RTX 8000"), 48),
}  # fmt: skip
_LAMBDA = {  # samples a second of these models in mixed precision, then in float32 or tf32
    "V100 16 GB": (833, 189, 57, 369, 42, 12),
    "RTX 3090": (905, 172, 52, 513, 85, 24),
    "A10": (638, 135, 42, 349, 70, 19),
    "A100 40 GB PCIe": (1396, 368, 117, 882, 179, 53),
    "A100 80 GB PCIe": (1527, 415, 140, 1014, 224, 70),
    "A100 80 GB SXM": (1582, 443, 152, 1066, 239, 75),
    "RTX 4090": (1301, 297, 93, 721, 137, 44),
    "H100 PCIe": (1866, 567, 203, 1197, 292, 97),
    "H100 SXM": (2776, 867, 307, 1893, 433, 147),
    "RTX A6000": (916, 198, 68, 514, 101, 33),
    "RTX 6000 Ada": (1146, 255, 79, 647, 136, 44),
    "RTX 8000": (651, 146, 50, 274, 41, 12),
}
_TIMM = {  # images a second in mixed precision on the RTX 3090: channels first, and last
    "resnet18": (2764.2, 3481.8),
    "resnet50": (826.1, 1218.0),
    "resnet101": (None, 747.9),
    "resnext50_32x4d": (663.4, 1001.0),
    "vgg16": (None, 546.1),
    "densenet121": (730.1, 913.7),
    "inception_v3": (None, 782.4),
    "efficientnet_b0": (1459.1, 1751.7),
}


@dataclass(frozen=True)
class HeldOutSteps:
    """Predict further published steps."""

    out: Path = Path("runs/held_out_steps")
    """where captured graphs go"""


class Step(NamedTuple):
    """A published step."""

    source: str
    board: str
    precision: str  # as `captured` takes it
    layout: str
    model: str
    batch: int
    measured_ms: float


def steps() -> Iterator[Step]:
    """All of them."""
    for board, rates in _LAMBDA.items():
        single = "tf32" if "tf32" in BOARDS[board].flops else "fp32"  # type: ignore[operator]
        precisions = ["fp16", "half", "half"] + [single] * 3
        batches = _BATCHES[_MEMORY.get(board, 80)]
        for precision, model, batch, rate in zip(precisions, _MODELS * 2, batches, rates, strict=True):
            yield Step("Lambda", board, precision, "channels first", model, batch, 1e3 * batch / rate)
    for model, found in _TIMM.items():
        for layout, per_second in zip(("channels first", "channels last"), found, strict=True):
            if per_second is not None:
                yield Step("timm", "RTX 3090", "fp16", layout, model, 64, 1e3 * 64 / per_second)


def main(config: HeldOutSteps) -> None:
    """Predict, print."""
    found = list(steps())

    def predicted(step: Step) -> tuple[tuple[float, float], float]:
        last = step.layout == "channels last"
        graph = captured(f"{step.model}_b{step.batch}", step.precision, last, config.out / "graphs")
        roofline, table = (alone_ms(BOARDS[step.board], costs, graph) for costs in (ROOFLINE, EFFICIENCY))
        return roofline, sum(table)

    roofline, table = zip(*measure_cells(found, predicted, "capturing").values(), strict=True)
    measured = np.array([step.measured_ms for step in found])
    ratios = {
        "dtype peaks (roofline)": np.array(roofline).sum(axis=1) / measured,
        f"constant of ops, {EFFICIENCY.constant:.2f}": over_constant(np.array(roofline), EFFICIENCY.constant)
        / measured,
        "table (efficiency)": np.array(table) / measured,
    }
    print(f"Median error, median factor and worst factor of {len(found)} steps, by group of at least {FEWEST}:\n")
    head = ["group", "steps", *ratios]
    rows = []
    for label, mask in groups_of(found, "source", "precision", "source, layout", "model", "board").items():
        cells = [", ".join(summary(ratio[mask], measured[mask])[:3]) for ratio in ratios.values()]
        rows.append([label, str(mask.sum()), *cells])
    print(markdown([head, *rows]))
    print("\nEach step, predicted by the table:\n")
    head = ["step", "board", "precision", "layout", "source", "measured ms", "predicted ms", "factor"]
    rows = [
        [f"{s.model}_b{s.batch}", s.board, s.precision, s.layout, s.source, f"{s.measured_ms:.1f}", f"{ms:.1f}",
         f"{ms / s.measured_ms:.2f}"]
        for s, ms in zip(found, table, strict=True)
    ]  # fmt: skip
    print(markdown([head, *rows], 5))


if __name__ == "__main__":
    command(main, HeldOutSteps, "held_out_steps", __doc__)
