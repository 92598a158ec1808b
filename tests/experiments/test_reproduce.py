import subprocess
from pathlib import Path

import pytest

from experiments.reproduce import MINUTES, Reproduce, arguments, current, main, minutes
from experiments.result_pages import FIGURES, HEAD, PAGES, RESULTS, ROOT, SECTIONS, PageError, ResultFile, render

TINY = """
import sys
from pathlib import Path
out, results = (Path(sys.argv[sys.argv.index(option) + 1]) for option in ("--out", "--results"))
class Config:
    out: Path = Path("runs/tiny")
out.mkdir(parents=True)
at = out.parent.name
(out / "tiny.png").write_bytes(at.encode())
results.write_text(f"    python -m experiments.tiny --seeds 3\\n\\n2026-11-26; commit {at};\\nThis run took 120 s.\\n"
                   "\\n| what | gain |\\n| --- | ---: |\\n| new | 9.5 |\\n")
"""
BEFORE = "    python -m experiments.tiny --out here --seeds 3\n\n| what | gain |\n| --- | ---: |\n| new | 1.5 |\n"

DIGEST = "8b6df8c11847ada8"  # of "drawn"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {f"experiments/pages/{name}": "nothing" for name in PAGES} | {
        "experiments/__init__.py": "",
        "experiments/tiny.py": TINY,
        "experiments/pages/results.md": '{{ cell("tiny", "new", "gain") }} {{ figure("tiny") }}',
        f"{RESULTS}/tiny.md": f"{BEFORE}\nPicture: {FIGURES}/tiny.png, SHA-256 {DIGEST}.\n",
        f"{FIGURES}/tiny.png": "drawn",
        "docs/page.md": "",
        **{PAGES[name]: HEAD.format(name=name) for name in SECTIONS},
        ".gitignore": "runs",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    commit_all(tmp_path)
    return tmp_path


def commit_all(tree: Path) -> None:
    who = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *command], cwd=tree, check=True, capture_output=True)


def test_what_is_of_other_code_runs_once(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(Reproduce(plan=True), tree)
    assert "| tiny | 0 | no |" in capfd.readouterr().out
    main(Reproduce(), tree)
    assert "9.5" in (tree / PAGES["results.md"]).read_text()
    assert "runs/" in capfd.readouterr().out
    main(Reproduce(), tree)
    printed = capfd.readouterr().out
    assert "| tiny | 2 | yes |" in printed
    assert "To run: 0 commands" in printed


def test_code_that_changed_makes_results_old_and_pages_do_not(tree: Path) -> None:
    main(Reproduce(), tree)
    commit_all(tree)
    file = ResultFile.read(tree / RESULTS / "tiny.md")
    assert current(file, tree)
    (tree / "docs" / "page.md").write_text("other")
    assert current(file, tree)
    (tree / "experiments" / "tiny.py").write_text(TINY + "# changed\n")
    assert not current(file, tree)
    with pytest.raises(PageError, match="commit it first"):
        main(Reproduce(), tree)


def test_every_results_file_names_a_command_and_a_time() -> None:
    files = render(ROOT, "results.md")[1].used
    for file in files.values():
        command = arguments(file, "0123abc", ROOT / "experiments")
        assert command[:1] == ["-m"]
        assert command[-2:] == ["--results", f"{RESULTS}/{file.name}.md"]
        assert minutes(file) > 0, f"{file.name}: give its minutes in experiments/reproduce.py"
    assert set(MINUTES) <= files.keys()
