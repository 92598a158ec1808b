import re
import subprocess
from pathlib import Path

from experiments.command import commit


def test_code_that_differs_makes_a_tree_dirty_and_pages_and_results_do_not(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert commit(tmp_path) == "unknown"
    files = [tmp_path / name for name in ("code.py", "page.md", "docs/picture.png", "experiments/results/x.md")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("before")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    for file in files[1:]:
        file.write_text("after")
    clean = commit(tmp_path)
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    files[0].write_text("after")
    assert commit(tmp_path) == f"{clean}-dirty"
