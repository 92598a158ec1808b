"""What doesn't capture, train or run a model works without PyTorch, and the rest says so in one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORKS = (
    "list placers",
    "list clusters",
    "place tiny.json --cluster 2xv100 --placer heft -o p.json",
    "place tiny.json --cluster 2xv100 --simulations 20",
    "simulate tiny.json --cluster 2xv100 --placement p.json --trace t.json",
    "evaluate tiny.json --cluster 2xv100 --placers heft,anneal --simulations 20 --processes 1 -o e.json",
    "compare tiny.json --clusters 2xv100,4xv100 --simulations 20",
    "report tiny.json --cluster 2xv100 --placement p.json --against heft,metis -o p.html",
)
NEEDS_TORCH = ("capture model.py:factory -o g.json", "train --graphs tiny.json --out run")
GRAPH = """{"format": "placeto.graph/1", "name": "tiny", "ops": [
  {"name": "a", "type": "aten.mm", "time_us": {"*": 50}, "outputs": [4000], "inputs": []},
  {"name": "b", "type": "aten.mm", "time_us": {"*": 50}, "outputs": [4000], "inputs": []},
  {"name": "c", "type": "aten.add", "time_us": {"*": 1}, "outputs": [4000], "inputs": [["a", 0], ["b", 0]]}]}"""
RUN = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torch_geometric"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])

sys.meta_path.insert(0, Refuse())
from placeto.cli import main
for line in sys.argv[1:]:
    print("#", line, file=sys.stderr)
    try:
        main(line.split())
    except SystemExit as stop:
        print("status", stop.code, file=sys.stderr)
"""


@pytest.mark.slow
def test_graphs_in_files_are_placed_and_what_needs_torch_says_so(tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(GRAPH)
    (tmp_path / "model.py").write_text("def factory(): pass")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PLACETO_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", RUN, *WORKS, *NEEDS_TORCH]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    said = {of.splitlines()[0]: of.splitlines()[1:] for of in done.stderr.split("# ")[1:]}
    assert list(said) == [*WORKS, *NEEDS_TORCH]
    assert {line: said[line][-1] for line in WORKS} == dict.fromkeys(WORKS, "status 0")
    sentence = "error: this needs PyTorch, and torch is not installed: pip install torch"
    assert {line: said[line] for line in NEEDS_TORCH} == {line: [sentence, "status 2"] for line in NEEDS_TORCH}
    for made in ("p.json", "t.json", "e.json", "p.html"):
        assert (tmp_path / made).stat().st_size > 100
