"""Evidence that is unwound later: stacks deep enough on code without frame pointers, usable however late it is read."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.proof.test_against_valgrind import GIT, PROGRAMS, make_inputs
from tests.support.attaching import until_ended
from tests.support.workloads import PROGRAM, Run, both_tracers, build, built, functions, need, run

pytestmark = pytest.mark.proof

FRAMES = 5
CHAIN = ["malloc", "inner", "middle", "outer", "main"]
INCOMPLETE = 6


@both_tracers
@pytest.mark.parametrize("name", ["jq", "sqlite3", "git-log", "xz-threads", "apt (C++)"])
def test_nine_of_ten_hot_spots_have_five_frames(tracer: str, name: str, tmp_path: Path) -> None:
    """The others are whole but short, or marked partial with the reason, in both reports."""
    argv = PROGRAMS[name]
    for needed in ("git", argv[0]):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed")
    make_inputs(tmp_path)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", **GIT}
    found = run(tracer, tmp_path, "--", *argv, environment=environment, options=["--top", "0"])
    spots = [site for kind in ("user", "runtime") for site in found.sites(kind)]
    assert spots
    depths = [sum(not frame["inlined"] for frame in site["frames"]) for site in spots]
    assert sum(depth >= FRAMES for depth in depths) >= 0.9 * len(spots), sorted(depths)
    partial = [site["end"] for site in spots if site["end"] != "ROOT"]
    for depth, site in zip(depths, spots, strict=True):
        assert depth >= FRAMES or site["end"] != "ROOT" or functions(site)[-1] in ("_start", "__clone3")
    assert found.report["unwinding"]["partial"] == len(partial)
    assert found.out.count("partial stack (") == len(partial)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return build("leaks_when_told", tmp_path, output="program")


def report_of(recording: Path, code: int = 0) -> Run:
    argv = [*PROGRAM, "report", "--format", "json", str(recording)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return Run(done.returncode, done.stdout, done.stderr, json.loads(done.stdout))


def check_whole(found: Run, blocks: int) -> None:
    (site,) = found.sites()
    assert (site["inuse_space"], site["inuse_objects"]) == (blocks * 1013, blocks)
    assert functions(site)[:FRAMES] == CHAIN and site["end"] == "ROOT"


@both_tracers
@pytest.mark.parametrize("options", [[], ["--keep-stacks"]], ids=["finished", "with-stacks"])
def test_read_after_the_process_is_gone(
    tracer: str, options: list[str], program: Path, tmp_path: Path
) -> None:
    """Twice the 500 ms of the seed, after the process and its agent; and the same again later."""
    need(tracer)
    recording = tmp_path / "r.memleak"
    argv = [*PROGRAM, "record", "--tracer", tracer, *options, "-o", str(recording), "--", str(program)]
    subprocess.run(argv, input=b"x" * 7, capture_output=True, check=True, timeout=60)
    time.sleep(1)
    first = report_of(recording)
    check_whole(first, 7)
    assert report_of(recording).report["sites"] == first.report["sites"]


@both_tracers
def test_stacks_of_threads_that_ended_long_before(tracer: str, tmp_path: Path) -> None:
    """Their stacks are unmapped when the report is made: only what was taken at the event can be unwound."""
    found = run(tracer, tmp_path, "--", built("two_arenas"))
    (site,) = found.sites()
    assert "leak_in_arena" in functions(site) and site["end"] == "ROOT"


@both_tracers
def test_recording_cut_short(tracer: str, program: Path, tmp_path: Path) -> None:
    """Our program is killed after a snapshot: the raw recording lies there, and gives whole stacks."""
    need(tracer)
    words = ["--tracer", tracer, "--interval", "100ms", "-o", str(tmp_path / "out"), "--", str(program)]
    process = subprocess.Popen([*PROGRAM, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        lines = iter(process.stdout.readline, b"")
        assert next(line for line in lines if line == b"ready\n")
        (agent,) = map(int, _children(process.pid))
        process.stdin.write(b"x" * 7)
        process.stdin.flush()
        seen = f"{7 * 1013} bytes in 7 allocations".encode()
        assert next(line for line in lines if seen in line.replace(b",", b""))
        for _ in range(3):  # a print comes before its snapshot is in the file for sure
            assert next(line for line in lines if seen in line.replace(b",", b""))
    finally:
        process.kill()
        process.communicate()
    assert until_ended(agent)
    recording = tmp_path / "out" / "recording.memleak"
    time.sleep(1)
    found = report_of(recording, INCOMPLETE)
    check_whole(found, 7)
    assert found.report["verdict"] == "incomplete"
    check_cuts(recording)


def check_cuts(recording: Path) -> None:
    """Further cuts: never a stack that is wrong, never more than was held."""
    whole = recording.read_bytes()
    for tenth in range(5, 10):
        recording.write_bytes(whole[: len(whole) * tenth // 10])
        sites: list[dict[str, Any]] = report_of(recording, INCOMPLETE).sites()
        for site in sites:
            assert functions(site)[:FRAMES] == CHAIN and site["inuse_objects"] <= 7


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
