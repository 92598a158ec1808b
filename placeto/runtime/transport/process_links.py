"""Measure transfers between processes by `torch.distributed`, as its pipelines make them: gloo between cores.

Torchrun starts this module, a process for each core. Two processes send a tensor to each other and back while the
others wait; a transfer takes half of that. Then all processes add up tensors by all-reduce, and two of them run a
pipeline of two small layers. The time of a chunk there, less that of its ops, is what torch takes for each chunk.
At last one process runs a backward pass in one chunk, and in two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from placeto.errors import RunError
from placeto.problem.costs.profiled import Fit
from placeto.runtime.local_devices import LocalDevice
from placeto.runtime.split_chunks import split_chunks
from placeto.runtime.torchrun import lines_of
from placeto.runtime.transport.transfers import SIZES, fitted, medians_us
from placeto.simulator.tool_steps.pipeline_step import CHUNK, SPLIT, SUM

_WIDTH, _FEW, _MANY = 8, 4, 16  # width of the small layers; two numbers of micro-batches


def process_links(devices: Sequence[LocalDevice]) -> tuple[np.ndarray, np.ndarray, dict[str, Fit]]:
    """Measure the links between processes on given cores; a transfer counts the same in both directions.

    Returns:
        (D, D) bandwidth in bytes/us; (D, D) latency in us; and what torch takes beside transfers, by `CHUNK`, `SPLIT`
        and `SUM` of `simulator.pipeline_step`, empty for one process.

    Raises:
        RunError: a device is no core, or the processes fail.
    """
    if gpu := next((device for device in devices if not device.is_cpu), None):
        raise RunError(f"{gpu.name}: transfers between processes are measured between cores only, by gloo")
    count = len(devices)
    bandwidth, latency_us = np.ones((count, count)), np.zeros((count, count))
    fits: dict[str, Fit] = {}
    for line in lines_of(["--module", "placeto.runtime.transport.process_links"], (), devices):
        measured = json.loads(line)
        if "chunk" in measured:
            fits[CHUNK], fits[SPLIT] = Fit(measured["chunk"], 0.0, 0.0), Fit(**measured["split"])
        elif "sum" in measured:
            fits[SUM] = _addition(measured["sum"], bandwidth, latency_us)
        else:
            first, second = measured["ranks"]
            for ends in ((first, second), (second, first)):
                latency_us[ends], bandwidth[ends] = fitted(dict(zip(SIZES, measured["us"], strict=True)))
    return bandwidth, latency_us, fits


def _addition(sum_us: Sequence[float], bandwidth: np.ndarray, latency_us: np.ndarray) -> Fit:
    """Return what an addition in a ring takes beside the transfers: for each tensor, and for each byte of its part."""
    count, measured = len(bandwidth), np.array(sum_us)
    part, following = np.array(SIZES) / count, [(rank, (rank + 1) % count) for rank in range(count)]
    slowest = np.max([latency_us[ends] + part / bandwidth[ends] for ends in following], axis=0)
    beside = np.maximum(measured - 2 * (count - 1) * slowest, 0.0)
    terms = (count - 1) * np.stack([np.ones(len(part)), part], axis=1)
    fixed, per_byte = nnls(terms / measured[:, None], beside / measured)[0]
    return Fit(float(fixed), 0.0, float(per_byte))


def _half(first: int, second: int, size: int) -> float:
    """Return the median microseconds of a transfer; the value at rank `first` counts."""
    tensor = torch.ones(size, dtype=torch.uint8)

    def there_and_back() -> None:
        for source, destination in ((first, second), (second, first)):
            if dist.get_rank() == source:
                dist.send(tensor, destination)
            else:
                dist.recv(tensor, source)

    return medians_us(there_and_back)[0] / 2


def _chunk(rank: int, group: dist.ProcessGroup) -> float:
    """Return the median microseconds of a chunk on rank 0 or 1, with its transfer but without its ops."""
    layer, row = nn.Linear(_WIDTH, _WIDTH), torch.ones(1, _WIDTH)

    def step_of(count: int) -> Callable[[], object]:
        pipeline, rows = _pipeline(layer, rank, count, group), torch.ones(count, _WIDTH)
        given: dict[str, Any] = {"target": rows if rank else None, "return_outputs": False}
        return partial(pipeline.step, *([] if rank else [rows]), **given)

    few, many, ops = medians_us(step_of(_FEW), step_of(_MANY), lambda: _loss(layer(row), row).backward())
    return max((many - few) / (_MANY - _FEW) - ops, 0.0) / 2  # a forward and a backward pass


def _pipeline(layer: nn.Module, rank: int, count: int, group: dist.ProcessGroup) -> _PipelineScheduleRuntime:
    """Return a pipeline of two stages with all forward passes first, so that ranks wait only at the beginning."""
    stage = PipelineStage(layer, rank, 2, torch.device("cpu"), group=group)
    pipeline = _PipelineScheduleRuntime([stage], count, loss_fn=_loss)
    kinds = [(kind, number) for kind in "FB" for number in range(count)]
    pipeline._prepare_schedule_with_comms(
        {stage: [_Action.from_str(f"{stage}{kind}{number}") for kind, number in kinds] for stage in range(2)}
    )
    return pipeline


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def main() -> None:
    """Print lines of JSON: microseconds by size for each pair of ranks, then those of sums, then those of chunks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    for first in range(count):
        for second in range(first + 1, count):
            dist.barrier()
            if rank in (first, second):
                times = [_half(first, second, size) for size in SIZES]
                if rank == first:
                    print(json.dumps({"ranks": [first, second], "us": times}), flush=True)
    if count > 1:
        dist.barrier()
        sums = [medians_us(partial(dist.all_reduce, torch.zeros(size // 4)))[0] for size in SIZES]
        pair = dist.new_group([0, 1])
        chunk = _chunk(rank, pair) if rank < 2 else 0.0
        if rank == 0:
            said = {"chunk": chunk, "split": vars(split_chunks())}
            print(json.dumps({"sum": sums}), json.dumps(said), sep="\n", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
