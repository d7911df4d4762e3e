"""The documents against the tree: links, paths, options, make targets, rooms, and lengths."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from memleak_android.host.cli import VERBS, verb_named
from memleak_android.host.commands.fleet import fleet
from memleak_android.host.reports.formats import FORMATS

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
WORDS_MAX = {"README.md": 600, "docs/architecture.md": 900, "CHANGELOG.md": 600}
ALL_WORDS_MAX = 20_000  # beside those of security
OF_SECURITY = {"SECURITY.md", "docs/design/threats.md"}


def of_document(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=of_document)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", document.read_text()):
        if not target.startswith("https://"):
            path, _, heading = target.partition("#")
            linked = document.parent / path if path else document
            assert linked.exists(), target
            assert not heading or heading in headings(linked), target


def headings(document: Path) -> set[str]:
    """Anchors as the usual renderers make them: lower case, only words and hyphens."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=of_document)
def test_paths_exist(document: Path) -> None:
    """A path in backticks that begins with one of the top-level folders names a file or folder."""
    for path in re.findall(
        r"`((?:host|unwind|device|tests|ndk-build|docs|\.ci)/[\w./*-]+)`", document.read_text()
    ):
        if "NAME" not in path:
            assert list(ROOT.glob(path.rstrip("/"))), path


def commands_shown() -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        for line in re.findall(r"^(?:    |[$#] )?memleak-android (.*)$", document.read_text(), re.MULTILINE):
            found.append(
                (of_document(document), re.split(r"\s{2,}| \| | >|#", f" {line}".split(" -- ")[0].strip())[0])
            )
    return found


def options_of(command: click.Command) -> set[str]:
    return {word for option in command.params for word in (*option.opts, *option.secondary_opts)}


@pytest.mark.parametrize(("document", "command"), commands_shown())
def test_options_of_shown_commands_exist(document: str, command: str) -> None:
    words = shlex.split(command)
    known = options_of(verb_named("trace")) | {"--version", "-h", "--help", "--help-all"}
    verb = next((word for word in words if word in VERBS), None)
    if verb is not None:
        known |= options_of(verb_named(verb))
        if verb == "fleet":
            known |= options_of(fleet.commands["report"])
    assert not {word for word in words if re.match(r"--?[a-z]", word)} - known


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        named = re.findall(r"(?:^    |`)make ([a-z-]+)", document.read_text(), re.MULTILINE)
        assert set(named) <= targets, document


def test_every_format_is_described() -> None:
    described = (ROOT / "docs" / "use" / "reports.md").read_text()
    assert not {name for name in FORMATS if f"\n| {name} |" not in described}


def test_every_shipped_pair_set_is_described() -> None:
    described = (ROOT / "docs" / "use" / "pairs.md").read_text()
    assert not {
        path.stem for path in (ROOT / "host" / "pairs").glob("*.toml") if f"`{path.stem}`" not in described
    }


def console_blocks() -> dict[str, list[tuple[str, str]]]:
    """By document: (kind, text) of its console blocks that show output, and the diffs between them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for document in DOCUMENTS:
        for kind, block in re.findall(r"```(console|diff)\n(.*?)```", document.read_text(), re.DOTALL):
            if any(not line.startswith(("$ ", "# ", "    ")) for line in block.splitlines()):
                found.setdefault(of_document(document), []).append((kind, block))
    return found


def without_chance(text: str, *, is_timed: bool) -> list[str]:
    """Lines with addresses, ids, times and folders of one run replaced. is_timed: all numbers but lines, and the layout, too."""
    text = re.sub(r"\b[0-9a-f]{16}\b", "ID", text)
    text = re.sub(r"\+0x[0-9a-f]+", "+OFFSET", re.sub(r"\b\d+(\.\d)? s\b", "TIME", text))
    text = re.sub(r"/\S*/docs/examples/", "docs/examples/", text)
    if is_timed:
        text = re.sub(r" +", " ", re.sub(r"(?<![:.\w])(?<!code )\d[\d,.:]*(?!\w)", "N", text))
    return text.splitlines()


@pytest.mark.parametrize(("document", "blocks"), console_blocks().items())
def test_shown_output_is_printed(document: str, blocks: list[tuple[str, str]], tmp_path: Path) -> None:
    """Runs the commands of a document's blocks in one shell; a line `…` stands for any lines, else for any text."""
    if missing := [name for name in ("cc", "c++", "git") if shutil.which(name) is None]:
        pytest.skip(f"{missing} not installed (apt-get install gcc g++ git)")
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    next_block = "=== next block ==="
    script = []
    for kind, block in blocks:
        commands = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
        script += [f"git apply -p0 - <<'END'\n{block}END"] if kind == "diff" else commands
        script.append(f"echo '{next_block}'")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", "\n".join(script)],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    is_timed = any("--duration" in block for _, block in blocks)
    for (kind, block), printed in zip(blocks, done.stdout.split(f"{next_block}\n"), strict=False):
        if kind == "console":
            check_printed(block, "\n".join(without_chance(printed, is_timed=is_timed)), is_timed=is_timed)


def check_printed(block: str, printed: str, *, is_timed: bool) -> None:
    shown = "\n".join(line for line in block.splitlines() if not line.startswith("$ "))
    pattern = re.escape("\n".join(without_chance(shown, is_timed=is_timed)))
    pattern = re.sub(r"(\A|\\\n)…(\\\n|\Z)", "(?s:.*)", pattern).replace("…", ".*")
    assert re.fullmatch(pattern, printed), printed


def test_documents_are_short() -> None:
    words = {of_document(document): len(document.read_text().split()) for document in DOCUMENTS}
    assert not {name: words[name] for name, most in WORDS_MAX.items() if words[name] > most}
    assert sum(n for name, n in words.items() if name not in OF_SECURITY) <= ALL_WORDS_MAX
