"""Pages: their links and their examples."""

import json
import re
from pathlib import Path

import pytest

from placeto import PlacementProblem, load_cluster, load_graph, simulate
from placeto.evaluation.comparison import load_rows
from placeto.formats.placement import PlacementFile, load_placement
from placeto.formats.plan import PlanFile, load_plan
from placeto.problem.cluster import Cluster
from placeto.problem.costs import ROOFLINE, load_costs
from placeto.problem.costs.profiled import load_profiled, torch_version
from placeto.problem.graph import ComputationGraph

ROOT = Path(__file__).parents[1]
FORMATS = (ROOT / "docs" / "file-formats.md").read_text()
PAGES = sorted(
    path
    for folder in (
        ".",
        "docs",
        "examples",
        "experiments",
        "experiments/results",
        "experiments/decisions",
        "placeto/pretrained",
    )
    for path in (ROOT / folder).glob("*.md")
)


def examples(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_numbers_of_the_method_stand_in_tables_or_decisions() -> None:
    folders = ("experiments", "experiments/results", "experiments/decisions", "placeto/pretrained")
    printed = "\n".join(path.read_text() for folder in folders for path in (ROOT / folder).glob("*.md"))
    method = (ROOT / "docs" / "method.md").read_text()
    numbers = set(re.findall(r"(?<![\d.])\d+\.\d{2,4}(?!\d)|\d+(?:,\d{3})+", method))
    assert len(numbers) > 30
    assert sorted(number for number in numbers if number.removeprefix("0") not in printed) == []


def prose(page: Path) -> str:
    """The text of a page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What a link to a heading of a page ends in: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_resolve(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", prose(page))
    found = [(page.parent / path if path else page, path, anchor) for path, anchor in links]
    assert [path for to, path, _ in found if not to.exists()] == []
    assert [f"{path}#{anchor}" for to, path, anchor in found if anchor and anchor not in anchors(to)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_that_a_page_places_in_a_file_are_there(page: Path) -> None:
    named = re.findall(r"`(\w+)`\s(?:(?:or|and)\s(?:to\s)?`(\w+)`\s)?in\s`(placeto/[\w/]+\.py)`", page.read_text())
    for one, other, path in named:
        for name in filter(None, (one, other)):
            assert re.search(rf"^(?:class |def )?{name}\b", (ROOT / path).read_text(), re.MULTILINE), (name, path)


def test_every_experiment_stands_in_the_list() -> None:
    listed = set(re.findall(r"^\| `(\w+)`", (ROOT / "docs" / "experiments.md").read_text(), re.MULTILINE))
    runnable = {path.stem for path in (ROOT / "experiments").glob("*.py") if "\n    command(main" in path.read_text()}
    assert listed == runnable


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    """What the examples of file formats load as, by format."""
    loaders = {
        "graph": load_graph, "cluster": load_cluster, "placement": load_placement, "plan": load_plan,
        "evaluation": load_rows, "costs": load_profiled, "efficiency": load_costs,
    }  # fmt: skip
    found: dict[str, list[object]] = {name: [] for name in loaders}
    for number, text in enumerate(examples("json", FORMATS)):
        path = tmp_path_factory.mktemp("examples") / f"{number}.json"
        path.write_text(text.replace('"torch": "2.13.0"', f'"torch": "{torch_version()}"'))
        name = json.loads(text)["format"].removeprefix("placeto.").partition("/")[0]
        found[name].append(loaders[name](path))
    return found


def test_examples_of_all_formats_load(loaded: dict[str, list[object]]) -> None:
    assert {name: len(of) for name, of in loaded.items()} == {
        "graph": 1, "cluster": 2, "placement": 1, "plan": 1, "evaluation": 1, "costs": 1, "efficiency": 1,
    }  # fmt: skip


def test_every_format_in_the_code_has_a_version_in_the_table() -> None:
    code = "".join(path.read_text() for path in (ROOT / "placeto").rglob("*.py"))
    written = {(name, version) for name, version in re.findall(r"\"(placeto\.\w+)/(\d+)\"", code)}
    table = re.findall(r"^\| `(placeto\.\w+)` \| (\d+ \| [\d, ]*)", FORMATS, re.MULTILINE)
    assert written == {(name, version) for name, versions in table for version in re.findall(r"\d+", versions)}


def test_examples_belong_together(loaded: dict[str, list[object]]) -> None:
    graph, cluster, file, rows = loaded["graph"][0], loaded["cluster"][0], loaded["placement"][0], loaded["evaluation"]
    assert isinstance(graph, ComputationGraph)
    assert isinstance(cluster, Cluster)
    assert isinstance(file, PlacementFile)
    problem = PlacementProblem(graph, cluster, ROOFLINE)  # the table of efficiencies may be fitted anew
    assert simulate(problem, file.devices(graph, cluster)).makespan_us == file.makespan_us
    (plan,) = loaded["plan"]
    assert isinstance(plan, PlanFile)
    plan.check_cluster(cluster)
    assert plan.placement.placement == file.placement
    (row,) = rows[0]
    assert row["makespan_us"] == problem.single_device_us
    assert row["lower_bound_us"] == problem.lower_bound_us
