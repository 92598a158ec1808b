"""Adds the pages of the repository to the documentation site, with all that they link to: a hook of mkdocs.

Pages stay where they are, so that their links work on GitHub and on the site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
FOLDERS = ".", "docs", "examples", "experiments", "experiments/results", "experiments/decisions", "placeto/pretrained"


def site_files() -> Iterator[Path]:
    """The pages, and the files that they link to, relative to the repository."""
    pages = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.md"))]
    found = dict.fromkeys(pages)
    for page in pages:
        for link in re.findall(r"\]\((?!\w+:)([^)#\s]+)", page.read_text()):
            target = (page.parent / link).resolve()
            if target.is_file() and target.is_relative_to(ROOT):
                found[target] = None
    for path in found:
        yield path.relative_to(ROOT)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add them; mkdocs calls this."""
    from mkdocs.structure.files import File

    for path in site_files():
        files.append(File.generated(config, path.as_posix(), abs_src_path=str(ROOT / path)))
    return files
