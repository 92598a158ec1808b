"""The arguments with which Megatron-LM, vLLM, llama.cpp and exo give each device the layers that a placement gives it.

- Megatron-LM (core 0.16): ``--pipeline-model-parallel-layout`` lists the stages, ``|`` between them: ``E`` the
  embedding, ``t*3`` three layers, ``L`` the loss. Stage s is on pipeline rank s mod P. It trains in an order of its
  own, one forward, one backward (1F1B).
- vLLM: ``VLLM_PP_LAYER_PARTITION`` has a number of layers for each pipeline rank; the first one embeds, the last one
  has the head.
- llama.cpp: ``--tensor-split`` has a share for each GPU. They divide the layers that are on GPUs, and behind them the
  output, which counts as one more. ``--n-gpu-layers`` says how many these are: the others, the first ones, are on the
  CPU.
- exo: the shards of an instance, half-open intervals of layers by device rank.

Legend: L layers, S stages, R replicas, P devices of a replica.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Sequence

from placeto.errors import PlacementError
from placeto.formats.exports.whole_layers import ALONE, WholeLayers
from placeto.plumbing.terminal import printable
from placeto.problem.cluster import Cluster
from placeto.problem.cluster.groups import ranks_of


def megatron(split: WholeLayers, batch: int | None = None) -> str:
    """Return arguments of Megatron-LM's training programs, as a shell array.

    Args:
        split: the layers of a training step in micro-batches.
        batch: samples of a step; if not given, a micro-batch has one.

    Raises:
        PlacementError: Megatron-LM can't run the plan.
    """
    if why := split.plan.refusal(split.schedule.problem, "megatron"):
        raise PlacementError(f"{_name(split)}: {why}")
    size, samples = len(split.ranks[0]), 1 if batch is None else batch // split.plan.num_micro_batches
    layers = [f"t*{count}" if count > 1 else "t" * count for count in split.counts]
    words = [f"--pipeline-model-parallel-size {size}"]
    if size > 1:
        words.append(f"--pipeline-model-parallel-layout '{'|'.join(['E' + layers[0], *layers[1:]])}L'")
    words += [f"--num-layers {len(split.modules)}", f"--micro-batch-size {samples}"]
    words.append(f"--global-batch-size {samples * split.plan.num_micro_batches}")
    if split.plan.width > 1:
        words.append(f"--tensor-model-parallel-size {split.plan.width}")
    if len(split.plan.replicas) > 1:
        words.append("--use-distributed-optimizer")  # in the simulation, one of the replicas has the state of a weight
    if most := max(split.recomputed):
        words.append(f"--recompute-granularity full --recompute-method block --recompute-num-layers {most}")
    ranks = ranks_by_stage(split)
    return _script(split, ranks, f'torchrun --nproc-per-node {len(ranks)} pretrain_gpt.py "${{PLACED[@]}}"', [], words)


def vllm(split: WholeLayers, batch: int | None = None) -> str:
    """Return the environment and arguments of ``vllm serve``, for a shell.

    Raises:
        PlacementError: a device has layers in several places, or none.
    """
    _check(split, "vLLM", split.counts)
    words = [f"--pipeline-parallel-size {len(split.counts)}"]
    if len(split.plan.replicas) > 1:
        words.append(f"--data-parallel-size {len(split.plan.replicas)}")
    ranks = tuple(device for row in split.plan.replicas for device in row)
    partition = f"export VLLM_PP_LAYER_PARTITION={','.join(map(str, split.counts))}"
    return _script(split, ranks, 'vllm serve MODEL "${PLACED[@]}"', [partition], words)


def llama_cpp(split: WholeLayers, batch: int | None = None) -> str:
    """Return arguments of llama.cpp's programs, as a shell array.

    Raises:
        PlacementError: a device has layers in several places, or none; there are replicas; or a CPU has other layers
            than the first.
    """
    slots = [*split.counts[:-1], split.counts[-1] + 1]  # the output counts as one more layer
    _check(split, "llama.cpp", slots, replicas=False)
    (devices,), cluster = split.plan.replicas, split.schedule.problem.cluster
    on_cpu = [cluster.devices[device].is_cpu for device in devices]
    if any(on_cpu[1:]):
        stage = on_cpu.index(True, 1)
        raise PlacementError(
            f"{_name(split)}: {cluster.device_names[devices[stage]]} has {_of_stage(split, stage)}; llama.cpp can have "
            "only the first layers on the CPU: place them there, or place all on GPUs"
        )
    gpus = slots[1:] if on_cpu[0] else slots
    words = ["--split-mode layer", f"--n-gpu-layers {sum(gpus)}"]
    if gpus:
        words.append(f"--tensor-split {','.join(map(str, gpus))}")
    return _script(split, devices, 'llama-server -m MODEL.gguf "${PLACED[@]}"', [], words)


def exo(split: WholeLayers, batch: int | None = None) -> str:
    """Return the shards of an instance of exo, as JSON, with the rank and the layers of each device.

    Raises:
        PlacementError: a device has layers in several places, or none, or there are replicas.
    """
    _check(split, "exo", split.counts, replicas=False)
    names, count = split.schedule.problem.cluster.device_names, len(split.counts)
    shards = [
        {"deviceRank": rank, "worldSize": count, "startLayer": first, "endLayer": end, "nLayers": len(split.modules)}
        for rank, (first, end) in enumerate(split.stages)
    ]
    nodes = [
        {"node": names[device], "PipelineShardMetadata": shard}
        for device, shard in zip(split.plan.replicas[0], shards, strict=True)
    ]
    return json.dumps({"sharding": "Pipeline", "shards": nodes}, indent=1) + "\n"


LAYER_TOOLS = {"megatron": megatron, "vllm": vllm, "llama.cpp": llama_cpp, "exo": exo}
"""Name of a format -> function that writes it, from layers and the samples of a step, which may be None."""
TITLES = {"megatron": "Megatron-LM", "vllm": "vLLM", "llama.cpp": "llama.cpp", "exo": "exo"}


def ranks_by_stage(split: WholeLayers) -> tuple[int, ...]:
    """(P * R * t,) the board of each rank, if ranks are numbered by pipeline rank, then replica, then place in a group.

    The numbers are those of `PlacementProblem.boards`.
    """
    devices = [device for row in zip(*split.ranks, strict=True) for device in row]
    if split.plan.width == 1:
        return tuple(devices)
    return tuple(ranks_of(split.schedule.problem.boards, split.plan.width)[devices].ravel().tolist())


def hosts_in_order(cluster: Cluster, ranks: tuple[int, ...]) -> bool:
    """Whether a launcher that counts ranks host by host gives each rank its device."""
    hosts = [cluster.hosts[device] for device in ranks]
    return len(set(hosts)) == 1 + sum(host != following for host, following in itertools.pairwise(hosts))


def visible(cluster: Cluster, ranks: tuple[int, ...]) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES that gives each rank its GPU.

    It is "" if it isn't needed, because the ranks are the first GPUs in order, or if the cluster has several hosts.
    """
    gpus = cluster.computing
    numbers = [gpus.index(device) for device in ranks if device in gpus]
    return "" if cluster.num_hosts > 1 or numbers == list(range(len(numbers))) else ",".join(map(str, numbers))


def _script(split: WholeLayers, ranks: tuple[int, ...], command: str, exports: list[str], words: list[str]) -> str:
    cluster = split.schedule.problem.boards
    names = shlex.join(printable(cluster.device_names[device]) for device in ranks)
    if numbers := visible(cluster, ranks):
        exports = [f"export CUDA_VISIBLE_DEVICES={numbers}", *exports]
    arguments = "".join(f"  {word}\n" for word in words)
    lines = [f"# {command}", f"DEVICES=({names})  # of each rank", *exports]
    return "".join(f"{line}\n" for line in lines) + f"PLACED=(\n{arguments})\n"


def _name(split: WholeLayers) -> str:
    return split.schedule.problem.graph.name


def _check(split: WholeLayers, tool: str, slots: Sequence[int], replicas: bool = True) -> None:
    """Refuse what a tool that infers can't run: several places of layers on a device, or none; perhaps replicas.

    Args:
        split: S stages.
        tool: the name of the tool.
        slots: (S,) the layers of each stage as the tool counts them.
        replicas: whether the tool has replicas.
    """
    names = split.schedule.problem.cluster.device_names
    for row in split.plan.replicas:
        for stage, device in enumerate(row):
            if row.count(device) > 1:
                where = " and ".join(_of_stage(split, other) for other, at in enumerate(row) if at == device)
                why = f"{names[device]} has {where}; {tool} needs contiguous layers of each device: {ALONE}"
                raise PlacementError(f"{_name(split)}: {why}")
            if not slots[stage]:
                why = f"{names[device]} has no layer, which {tool} can't do: place on fewer devices"
                raise PlacementError(f"{_name(split)}: {why}")
    if len(split.plan.replicas) > 1 and not replicas:
        count = f"the placement has {len(split.plan.replicas)} replicas"
        raise PlacementError(f"{_name(split)}: {count}, {tool} runs one copy of a model: {ALONE}")


def _of_stage(split: WholeLayers, stage: int) -> str:
    """Return what a stage has, for messages, such as "layers 0 to 3"; the first and the last may have no layer."""
    first, end = split.stages[stage]
    if first == end:
        return f"what comes {'behind layer' if stage else 'before layer'} {first - 1 if stage else 0}"
    return f"layers {first} to {end - 1}" if end - first > 1 else f"layer {first}"
