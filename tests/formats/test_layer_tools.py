"""What tools are told of layers is read as their documents say, and gives each device what the placement gives it."""

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from placeto.errors import PlacementError
from placeto.formats.exports.layer_tools import (
    LAYER_TOOLS,
    exo,
    hosts_in_order,
    llama_cpp,
    megatron,
    ranks_by_stage,
    visible,
    vllm,
)
from placeto.formats.exports.whole_layers import WholeLayers, whole_layers
from placeto.problem.cluster import load_cluster
from placeto.simulator.schedule import simulate
from tests.formats.test_whole_layers import INFERENCE, TRAINING, cut
from tests.formats.torch_toys import captured, chain, planned

ENDS = [f"body.h.{number}" for number in range(1, 6)]


def parts(devices: Sequence[int], borders: Sequence[str], cluster: str = "4xv100") -> WholeLayers:
    """Of the inference in stages that begin at modules."""
    return whole_layers(cut(INFERENCE, list(devices), list(borders), cluster), "the tool")


def turns(devices: Sequence[tuple[int, ...]], micro_batches: int = 4, cluster: str = "4xv100") -> WholeLayers:
    """Of a chain of 8 layers in stages of equally many."""
    return whole_layers(planned(captured(chain(8), micro_batches), devices, cluster=cluster), "the tool")


def sourced(script: str) -> tuple[dict[str, str], dict[str, str]]:
    """Arguments and the environment that a shell has of a script: words that begin with dashes and their values."""
    program = f'{script}\nprintf "%s\\n" "${{PLACED[@]}}"; echo; env'
    done = subprocess.run(["bash", "-euc", program], capture_output=True, text=True, check=True, env={"PATH": "/bin"})
    words, _, environment = done.stdout.partition("\n\n")
    pairs = [line.split("=", 1) for line in environment.splitlines() if "=" in line]
    listed = [word for line in words.splitlines() for word in line.split(" ")]
    values = [("" if word.startswith("--") else word) for word in (*listed[1:], "")]
    return {word: value for word, value in zip(listed, values, strict=True) if word.startswith("--")}, dict(pairs)


def stages_of(layout: str) -> list[str]:
    """Megatron-LM's grammar: one letter a layer, `x*n` for n of them, `|` between the stages."""
    return re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), layout).split("|")


def assigned(words: dict[str, str], layers: int) -> list[int]:
    """llama.cpp: of each layer and of the output the GPU, -1 for the CPU.

    Shares are summed and divided by their sum; a layer goes to the first GPU whose sum is above the layer's place among
    those that are on GPUs. Numbers have 32 bits.
    """
    on_gpus = min(int(words["--n-gpu-layers"]), layers + 1)
    shares = np.array(words.get("--tensor-split", "1").split(","), np.float32).cumsum(dtype=np.float32)
    shares /= shares[-1]
    first = layers + 1 - on_gpus
    places = [np.float32(layer - first) / np.float32(on_gpus) for layer in range(first, layers + 1)]
    return [-1] * first + [int(np.searchsorted(shares, place, side="right")) for place in places]


def test_megatron_reads_stages_in_turns() -> None:
    made = turns([(0, 1), (2, 3), (0, 1), (2, 3)])
    words, _ = sourced(megatron(made, 32))
    found = stages_of(words["--pipeline-model-parallel-layout"])
    assert found == ["Ett", "tt", "tt", "ttL"]
    assert "".join(found).count("t") == int(words["--num-layers"]) == 8
    size = int(words["--pipeline-model-parallel-size"])
    assert size == 2
    assert (words["--micro-batch-size"], words["--global-batch-size"]) == ("8", "32")
    ranks = ranks_by_stage(made)  # rank = stage * replicas + replica
    assert ranks == (0, 1, 2, 3)
    for stage in range(4):
        for replica in range(2):
            assert made.plan.replicas[replica][stage] == ranks[stage % size * 2 + replica]


def test_megatron_may_have_the_embedding_or_the_head_alone() -> None:
    made = whole_layers(cut(TRAINING, [3, 1, 2], ["body.h.0", "norm"]), "Megatron-LM")
    words, environment = sourced(megatron(made))
    assert stages_of(words["--pipeline-model-parallel-layout"]) == ["E", "tttttt", "L"]
    assert environment["CUDA_VISIBLE_DEVICES"] == "3,1,2"
    assert words["--global-batch-size"] == "4"
    assert "--use-distributed-optimizer" not in words


def test_megatron_has_no_layout_for_replicas_alone() -> None:
    words, _ = sourced(megatron(turns([(0, 1)])))
    assert "--pipeline-model-parallel-layout" not in words
    assert words["--pipeline-model-parallel-size"] == "1"
    assert "--use-distributed-optimizer" in words


def test_megatron_recomputes_the_layers_of_which_the_plan_recomputes_parts() -> None:
    """And says what it leaves out, which is in no layer."""
    plain = cut(TRAINING, [0, 1], ["body.h.2"])

    def recomputing(*paths: str) -> WholeLayers:
        plan = replace(plain.plan, recomputed=paths)
        return whole_layers(simulate(plan.step(plain.problem), plan), "Megatron-LM")

    for paths, layers, exact in (
        (("body.h.0", "body.h.2"), "1", True),
        (("body.h.0.wide", "body.h.0.narrow"), "1", False),
        (("body.h.0.wide", "body.h.2", "body.h.3.wide"), "2", False),
        (("norm",), None, True),
    ):
        made = recomputing(*paths)
        words, _ = sourced(megatron(made))
        assert words.get("--recompute-num-layers") == layers
        assert made.recomputes_as("megatron") == exact
        assert made.recomputed_beside == (paths if layers is None else ())


def test_vllm_reads_as_many_numbers_as_ranks() -> None:
    words, environment = sourced(vllm(parts([2, 0, 1], ["body.h.1", "body.h.4"])))
    partition = [int(number) for number in environment["VLLM_PP_LAYER_PARTITION"].split(",")]
    assert partition == [1, 3, 2]
    assert words == {"--pipeline-parallel-size": "3"}
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,0,1"
    words, environment = sourced(vllm(turns([(0, 1), (2, 3)])))
    assert words == {"--pipeline-parallel-size": "2", "--data-parallel-size": "2"}
    assert environment["VLLM_PP_LAYER_PARTITION"] == "4,4"
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,2,1,3"  # rank = replica * stages + stage


@pytest.mark.parametrize("borders", [*([end] for end in ENDS), [ENDS[0], ENDS[1]], [ENDS[1], ENDS[4]], ["norm"]])
def test_llama_cpp_gives_each_gpu_its_layers(borders: list[str]) -> None:
    made = parts(range(len(borders) + 1), borders)
    words, environment = sourced(llama_cpp(made))
    gpus = [stage for stage, count in enumerate(made.counts) for _ in range(count)]
    assert assigned(words, 6) == [*gpus, len(borders)]
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert words["--split-mode"] == "layer"


def test_llama_cpp_has_the_first_layers_on_the_cpu() -> None:
    made = parts([0, 1], ["body.h.2"], "cpu+1xh100")
    words, environment = sourced(llama_cpp(made))
    assert assigned(words, 6) == [-1, -1, 0, 0, 0, 0, 0]
    assert "CUDA_VISIBLE_DEVICES" not in environment
    with pytest.raises(
        PlacementError, match=r"cpu:0 has layers 2 to 5; llama\.cpp can have only the first layers on the CPU"
    ):
        llama_cpp(parts([1, 0], ["body.h.2"], "cpu+1xh100"))


def test_exo_reads_half_open_intervals() -> None:
    made = json.loads(exo(parts([2, 0, 1], ["body.h.1", "body.h.4"])))
    assert [shard["node"] for shard in made["shards"]] == ["gpu:2", "gpu:0", "gpu:1"]
    shards = [shard["PipelineShardMetadata"] for shard in made["shards"]]
    assert [shard["deviceRank"] for shard in shards] == [0, 1, 2]
    assert {(shard["worldSize"], shard["nLayers"]) for shard in shards} == {(3, 6)}
    assert (shards[0]["startLayer"], shards[-1]["endLayer"]) == (0, 6)
    assert all(one["endLayer"] == other["startLayer"] for one, other in pairwise(shards))
    assert all(shard["startLayer"] < shard["endLayer"] for shard in shards)


@pytest.mark.parametrize(
    ("tool", "make", "told"),
    [
        ("megatron", lambda: turns([(0,), (1,), (0,)]), "don't go over the devices in the same order"),
        ("megatron", lambda: turns([(0,), (1,), (0,), (1,)], 3), "that the 2 devices of a pipeline divide, not 3"),
        (
            "vllm",
            lambda: turns([(0,), (1,), (0,), (1,)]),
            "gpu:0 has layers 0 to 1 and layers 4 to 5; vLLM needs contiguous",
        ),
        (
            "vllm",
            lambda: parts([0, 1, 0], ["body.h.0", "body.h.5"]),
            "gpu:0 has what comes before layer 0 and layer 5; vLLM",
        ),
        (
            "exo",
            lambda: parts([0, 1, 0], ["body.h.2", "norm"]),
            "gpu:0 has layers 0 to 1 and what comes behind layer 5; exo",
        ),
        ("llama.cpp", lambda: turns([(0,), (1,), (0,), (1,)]), "llama.cpp needs contiguous layers"),
        ("llama.cpp", lambda: turns([(0, 1), (2, 3)]), "has 2 replicas, llama.cpp runs one copy"),
        ("exo", lambda: parts([0, 1], ["norm"]), "gpu:1 has no layer, which exo can't do"),
        ("llama.cpp", lambda: parts([0, 1], ["body.h.0"]), "gpu:0 has no layer, which llama.cpp can't do"),
    ],
)
def test_what_a_tool_can_not_do_is_refused_in_a_sentence(tool: str, make: Callable[[], WholeLayers], told: str) -> None:
    made = make()
    with pytest.raises(PlacementError) as caught:
        LAYER_TOOLS[tool](made, None)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("devices", [[(0,), (1, 2)], [(0, 1, 2)]])
def test_what_only_infers_is_not_told_to_place_a_training(devices: Sequence[tuple[int, ...]]) -> None:
    schedule = planned(captured(chain(8)), devices)
    for trains, how in ((True, "--placer torch-pipeline"), (False, "--placer pipeline, without --micro")):
        with pytest.raises(PlacementError, match=f"replicas of its stages differ .*{how}"):
            whole_layers(schedule, "the tool", trains)


def test_ranks_are_counted_host_by_host() -> None:
    cluster = load_cluster("2x4xv100")
    assert hosts_in_order(cluster, (0, 1, 4, 5))
    assert hosts_in_order(cluster, (5, 4, 1))
    assert not hosts_in_order(cluster, (0, 4, 1, 5))
    assert visible(cluster, (1, 0)) == ""
    assert visible(replace(cluster, hosts=()), (0, 1)) == ""
    assert visible(replace(cluster, hosts=()), (0, 2)) == "0,2"
