"""The published settings of Llama 3 70B: what a rank has of a layer."""

import pytest

from experiments.outside_recipe import CHUNKS, LLAMA_WORDS, SIZE, OutsideRecipe, graph_of, part_of, read_recipes
from experiments.outside_vtrain import priced
from graphs.llama import Size
from placeto.problem.cluster import load_cluster
from placeto.problem.costs.collectives import collective_us

DATA = OutsideRecipe().data / "measured.csv"


def test_a_rank_has_a_share_of_a_layer_and_gathers_and_scatters_twice_in_each_pass() -> None:
    size, length, cluster = Size(1, 512, 8, 4, 1024), 256, load_cluster("8xh100")
    graph = graph_of(1, 4, size, length)
    layers = priced(graph, part_of, 4, cluster)
    attention, gated = 512 * (512 + 2 * 256 + 512), 3 * 512 * 1024
    assert layers.parameters.tolist() == [
        LLAMA_WORDS * 512 // 4,
        (attention + gated) // 4 + 2 * 512,
        LLAMA_WORDS * 512 // 4 + 512,
    ]
    products = [flops for flops, dtype in zip(graph.flops.tolist(), graph.dtypes, strict=True) if dtype == "float8"]
    assert sum(products) == pytest.approx(3 * 2 * length * (attention + gated) / 4)
    link = float(cluster.bandwidth[0, 1]), float(cluster.latency_us[0, 1])
    kinds = ("all_gather", "reduce_scatter")
    us = sum(collective_us(kind, 2 * length * 512, 4, *link) + cluster.overhead_us[0] for kind in kinds)
    norms = 2 * (collective_us("all_reduce", 2 * 512, 4, *link) + cluster.overhead_us[0])  # sums of their gradients
    assert layers.collective_us[1] == pytest.approx([2 * us, 2 * us + norms, 0.0])


@pytest.mark.skipif(not DATA.exists(), reason="what was measured isn't here")
def test_settings_use_32_gpus_and_divide_the_layers() -> None:
    recipes = read_recipes(DATA)
    assert [recipe.name for recipe in recipes] == ["TP4 PP4 DP2", "TP4 PP8 DP1", "TP8 PP4 DP1"]
    assert {recipe.width * recipe.stages * recipe.replicas for recipe in recipes} == {32}
    assert not any(SIZE.layers % (CHUNKS * recipe.stages) for recipe in recipes)
