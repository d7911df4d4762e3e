"""A million live blocks of a hundred thousand stacks as a report: all of it counted, in bounded memory and size."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

BLOCKS, STACKS = 1_000_000, 100_000
RSS_MAX = 640 << 20  # the recording has 130 MB
HTML_BYTES_MAX = 10 << 20


# A process of its own: what a child's largest resident set is counted from is its parent's, which may be large.
MEASURE = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", *sys.argv[1:]], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


class SiteSums(msgspec.Struct):
    inuse_space: int
    inuse_objects: int


class Sums(msgspec.Struct):
    sites: list[SiteSums]
    totals: SiteSums


def run(*arguments: str) -> int:
    """Its largest resident set in bytes; it must succeed."""
    command = [sys.executable, "-c", MEASURE, *arguments]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) << 10


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.memleak"
    run("tests.support.builders.large_recording", str(path), str(BLOCKS), str(STACKS))
    return path


def report(recording: Path, form: str) -> Path:
    path = recording.with_suffix(f".{form}")
    rss = run("memleak_android.host", "report", str(recording), "--format", form, "-o", str(path))
    assert rss < RSS_MAX
    return path


@pytest.mark.proof
def test_text(recording: Path) -> None:
    text = report(recording, "text").read_text()
    assert re.search(rf"^outstanding    [\d,]+ bytes in {BLOCKS:,} allocations$", text, re.MULTILINE)
    assert f"stacks         {STACKS:,} unwound, {STACKS:,} complete\n" in text


@pytest.mark.proof
def test_json_and_html(recording: Path) -> None:
    read = msgspec.json.decode(report(recording, "json").read_bytes(), type=Sums)
    assert len(read.sites) == STACKS and sum(site.inuse_objects for site in read.sites) == BLOCKS
    assert sum(site.inuse_space for site in read.sites) == read.totals.inuse_space
    assert report(recording, "html").stat().st_size < HTML_BYTES_MAX
