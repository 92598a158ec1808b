import shutil
import subprocess
from pathlib import Path

import pytest

from experiments.result_pages import FIGURES, PAGES, RESULTS, ROOT, Marks, PageError, Pages, ResultFile, main, render

TABLE = """# How fast?

    python -m experiments.speed --seeds 3

2 cores, x86_64, 2026-11-26; commit 0123abc; Python 3.11.7.

| placer | cluster | gain | of all |
| --- | --- | ---: | ---: |
| etf | 2 | 14.9% | 3.01e+03 (2 of 8) |
| etf | 4 | 1.5% | 7 |
| a\\|b | 4 | | 8 |

Mean gain 8.2%.
"""


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    (tmp_path / RESULTS).mkdir(parents=True)
    (tmp_path / RESULTS / "speed.md").write_text(TABLE)
    return Marks(tmp_path, "docs/history.md")


def test_cells_and_sentences_are_looked_up(marks: Marks) -> None:
    assert marks.cell("speed", ["etf", "2"], "gain") == "14.9 %"
    assert marks.cell("speed", ["etf", "2"], "of all") == "3,010 (2 of 8)"
    assert marks.number("speed", ["etf", "2"], 3) == 3010.0
    assert marks.cell("speed", r"a\|b", "gain") == ""
    assert marks.said("speed", "Mean gain ([0-9.]+%)") == "8.2 %"
    assert marks.table("speed", {"cluster": 0, "gain": "gain"}, {"four": ["etf", "4"]}).splitlines() == [
        "| cluster | gain |", "| --- | ---: |", "| four | 1.5 % |",
    ]  # fmt: skip
    assert marks.made("speed") == (
        "`python -m experiments.speed`, 2026-11-26, commit 0123abc ([full table](../experiments/results/speed.md))"
    )


def test_results_of_a_changed_tree_are_refused_or_listed(marks: Marks) -> None:
    path = marks.root / RESULTS / "speed.md"
    path.write_text(TABLE.replace("0123abc", "0123abc-dirty"))
    pages = marks.root / "experiments" / "pages"
    pages.mkdir()
    (pages / "history.md").write_text('{{ made("speed") }}')
    with pytest.raises(PageError, match="run its command again from a clean tree"):
        render(marks.root, "history.md")
    (pages / "history.md").write_text('{% set _ = changed("speed", "a page") %}\n{{ made("speed") }}')
    page, used = render(marks.root, "history.md")
    assert "commit 0123abc with changes" in page
    assert used.exceptions == ["docs/history.md: speed.md is of commit 0123abc-dirty: a page"]


@pytest.mark.parametrize("text", ["It is 3.5 faster.", "It gains 4 %.", "12 times fewer", "on 5 of 8"])
def test_typed_numbers_are_refused(tmp_path: Path, text: str) -> None:
    pages = tmp_path / "experiments" / "pages"
    pages.mkdir(parents=True)
    (pages / "history.md").write_text(f"# Title\n\n{text}\n")
    with pytest.raises(PageError, match=r"is typed in .*look it up"):
        render(tmp_path, "history.md")
    (pages / "history.md").write_text(f'# Title\n\n{{{{ typed("{text}", "a paper") }}}}\n')
    page, marks = render(tmp_path, "history.md")
    assert page.endswith(f"{text}\n")
    assert marks.exceptions == [f"docs/history.md: {text}: a paper"]


def test_pages_are_what_their_text_and_the_results_give() -> None:
    main(Pages(check=True))


def test_a_number_changed_by_hand_is_seen(tmp_path: Path) -> None:
    for folder in ("experiments/pages", RESULTS, FIGURES):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for page in PAGES.values():
        shutil.copy(ROOT / page, tmp_path / page)
    main(Pages(check=True), tmp_path)
    page = tmp_path / PAGES["results.md"]
    before = page.read_text()
    shown = ResultFile.read(ROOT / RESULTS / "headline.md").find("ETF", "geometric mean", 2)
    page.write_text(before.replace(shown, "0.123"))
    with pytest.raises(PageError, match=r"experiments/RESULTS.md: line \d+ is not what its text"):
        main(Pages(check=True), tmp_path)
    page.write_text(before)
    table = tmp_path / RESULTS / "headline.md"
    table.write_text(table.read_text().replace(shown, "0.123"))
    with pytest.raises(PageError, match=r"experiments/RESULTS.md: line \d+ is not what its text"):
        main(Pages(check=True), tmp_path)
    main(Pages(), tmp_path)
    assert "0.123" in page.read_text()


def test_results_are_of_commits_in_the_history() -> None:
    """Of those that RESULTS shows; where there is no git or no full history, nothing is compared."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("no git, or a part of its history only")
    _, marks = render(ROOT, "results.md")
    commits = {name: file.commit.removesuffix("-dirty") for name, file in marks.used.items()}
    assert len(commits) > 10
    missing = {name for name, at in commits.items() if git("merge-base", "--is-ancestor", at, "HEAD").returncode}
    assert missing - marks.accepted == set()
