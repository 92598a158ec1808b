"""What the public host runs: its workflow is well formed, and what it calls is there. CI checks it with actionlint."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def jobs(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())["jobs"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_job_has_a_machine_a_limit_and_steps(path: Path) -> None:
    for name, job in jobs(path).items():
        assert {"name", "runs-on", "timeout-minutes", "steps"} <= job.keys(), name
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            assert "@" in step.get("uses", "@") or step["uses"].startswith("docker://"), "no version"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_is_called_is_there(path: Path) -> None:
    called = "\n".join(step.get("run", "") for job in jobs(path).values() for step in job["steps"])
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([\w-]+)", called):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    scripts = [ROOT / name for name in re.findall(r"^\.ci/[\w-]+", called, re.MULTILINE)]
    assert scripts
    for script in scripts:
        assert os.access(script, os.X_OK), script
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_issue_templates_are_well_formed() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"):
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= form.keys()
        assert len({field["id"] for field in form["body"]}) == len(form["body"])


def test_the_python_that_is_claimed_is_the_one_that_runs() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    for path in WORKFLOWS:
        for job in jobs(path).values():
            for step in job["steps"]:
                if "python-version" in step.get("with", {}):
                    assert f">={step['with']['python-version']}" == wanted


def test_torch_is_a_release_that_is_tested_and_no_newer_one() -> None:
    """These are the pinned one and the one after it, with which `make test-newest` ran on 2026-11-28.

    With a newer torch, gradients were once wrong without a word: see the changelog.
    """
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pinned = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    accepted = next(Requirement(line) for line in wanted if Requirement(line).name == "torch").specifier
    release = Version(pinned.removeprefix("torch=="))
    assert release in accepted
    assert Version(f"{release.major}.{release.minor + 1}.99") in accepted
    assert Version(f"{release.major}.{release.minor + 2}.0") not in accepted
