"""The documents name things that exist: links, places in the tree, options of the command line, make targets."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", document.read_text()):
        if not target.startswith("https://"):
            path, _, heading = target.partition("#")
            linked = document.parent / path
            assert linked.exists(), target
            assert not heading or heading in headings(linked), target


def headings(document: Path) -> set[str]:
    """As the usual renderers name them: lower case, only words and hyphens."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_table_of_places_names_existing_files() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text().split("## Where things are")[1]
    places = re.findall(r"`([\w./*-]+/[\w./*-]*)`", table)
    assert len(places) > 15
    for place in places:
        assert list(ROOT.glob(place.rstrip("/"))), place


def test_every_host_folder_and_module_has_its_place() -> None:
    """A module that nobody put on the map is either misplaced or missing there."""
    table = (ROOT / "docs" / "architecture.md").read_text().split("## Where things are")[1]
    modules = {path.stem for path in (ROOT / "host").glob("*.py")} - {
        "__init__",
        "__main__",
        "errors",
        "spool",
    }
    assert not {name for name in modules if name not in table}


@functools.cache
def help_text(*verb: str) -> str:
    argv = [sys.executable, "-m", "memleak_android.host", *verb, "--help"]
    return subprocess.run(argv, text=True, capture_output=True, check=True).stdout


def test_options_of_the_readme_exist() -> None:
    commands = re.findall(
        r"^    memleak-android (.*?)(?:  .*)?$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    assert len(commands) > 7
    for command in commands:
        words = f" {command}".split(" -- ")[0].split()
        verb = [words[0]] if words and words[0] in {"record", "report", "doctor", "demo"} else []
        for option in (word for word in words if word.startswith("--")):
            assert option in help_text(*verb), command


def test_make_targets_of_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        named = re.findall(r"(?:^    |`)make ([a-z]+)", document.read_text(), re.MULTILINE)
        assert set(named) <= targets, document
