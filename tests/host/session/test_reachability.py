"""`--reachability` on a running program: the kinds of its blocks are those that valgrind finds at its exit."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.program_server import run_program
from tests.support.workloads import both_following, both_tracers, built, need, run

KINDS = {"definitely_lost", "indirectly_lost", "possibly_lost", "still_reachable"}


@pytest.fixture(scope="module")
def program() -> Path:
    return built("reachable_blocks", "-O0")


@functools.cache
def judged_by_valgrind(program: Path) -> Counter[tuple[str, int]]:
    """(kind, size) → blocks."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    words = ["valgrind", "--leak-check=full", "--show-leak-kinds=all", "--leak-check-heuristics=none"]
    done = subprocess.run([*words, program], capture_output=True, text=True, check=True)
    found: Counter[tuple[str, int]] = Counter()
    pattern = (
        r" ([\d,]+) (?:\(([\d,]+) direct, [\d,]+ indirect\) )?bytes in ([\d,]+) blocks are (\w+ \w+) in loss"
    )
    for in_all, direct, blocks, kind in re.findall(pattern, done.stderr):
        space, count = (int(text.replace(",", "")) for text in (direct or in_all, blocks))
        found[kind.replace(" ", "_"), space // count] += count
    return found


def kinds_of(report: dict[str, Any]) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for site in report["sites"]:
        for kind, one in site.get("leaks", {}).items():
            found[kind, one["space"] // one["objects"]] += one["objects"]
    return found


@both_tracers
def test_as_valgrind_says(tracer: str, program: Path, tmp_path: Path):
    options = ["--duration", "300ms", "--reachability", "-v", "-T", "0", "-o", "results"]
    done = run(tracer, tmp_path, "--", program, "60", options=options)
    os.kill(done.report["target"]["pid"], signal.SIGKILL)
    judged = judged_by_valgrind(program)
    assert {kind for kind, _ in judged} == KINDS
    assert kinds_of(done.report) == judged
    assert {kind: one["objects"] for kind, one in done.report["leaks"].items()} == {
        kind: sum(n for (of, _), n in judged.items() if of == kind) for kind in KINDS
    }
    assert "definitely lost 101 bytes in 1 allocation" in done.err
    read = run_program(["report", "results/recording.memleak", "--format", "json"], tmp_path)
    assert kinds_of(json.loads(read.stdout)) == judged
    assert re.search(r"2 threads stood still for \d+\.\d ms", done.err)


@pytest.mark.proof
def test_attached(program: Path, tmp_path: Path):
    """Nothing of its memory is known: nothing is called lost that is not seen."""
    need("bpf")
    with subprocess.Popen([program, "60"]) as process:
        try:
            time.sleep(0.3)
            options = ["--duration", "200ms", "--reachability", "-v"]
            done = run("bpf", tmp_path, "--pid", str(process.pid), options=options)
        finally:
            process.kill()
    assert "in use or freed, counts as in use" in done.out
    assert "leaks" not in done.report


@both_tracers
def test_of_a_command_that_ends(tracer: str, program: Path, tmp_path: Path):
    """As by valgrind: nothing of it runs any more, its memory is still there."""
    done = run(tracer, tmp_path, "--", program, "0", options=["--reachability"])
    assert kinds_of(done.report) == judged_by_valgrind(program)


def test_what_the_shim_itself_holds_leads_nowhere(tmp_path: Path):
    options = ["--duration", "300ms", "--reachability"]
    done = run("preload", tmp_path, "--", built("shim_refers", "-O0"), "60", options=options)
    os.kill(done.report["target"]["pid"], signal.SIGKILL)
    assert kinds_of(done.report) == {
        ("definitely_lost", 1009): 1,
        ("definitely_lost", 1013): 1,
        ("still_reachable", 1019): 1,
    }


@pytest.mark.proof
@both_tracers
def test_busy_threads_lose_nothing(tracer: str, tmp_path: Path):
    """Blocks are freed and moved between the snapshots and the stop; only what was lost before may be called lost."""
    options = ["--duration", "700ms", "--reachability"]
    done = run(tracer, tmp_path, "--", built("busy_lists"), options=options)
    os.kill(done.report["target"]["pid"], signal.SIGKILL)
    found = kinds_of(done.report)
    assert found.pop(("definitely_lost", 1009)) == 7
    assert not {kind for kind, _ in found} & {"definitely_lost", "indirectly_lost"}
    assert found["still_reachable", 307] == 1000


@both_following
@pytest.mark.parametrize("ends_first", [False, True])
def test_of_each_followed_process(tracer: str, ends_first: bool, tmp_path: Path):
    """Blocks from before a fork may not be the child's own, and may lead to some that are."""
    duration = [] if ends_first else ["--duration", "500ms"]
    words = [built("forked_holders", "-O0"), "3" if ends_first else "60", "1" if ends_first else "60"]
    done = run(tracer, tmp_path, "--", *words, options=["-v", "--follow", "--reachability", *duration])
    if not ends_first:
        for one in done.report["processes"]:
            os.kill(one["pid"], signal.SIGKILL)
    lost = Counter({("definitely_lost", size): 1 for size in (457, 463, 563)})
    assert kinds_of(done.report) == lost + Counter({("still_reachable", size): 1 for size in (449, 461, 557)})
    assert re.search(r"2 more processes stood still for at most \d+\.\d ms", done.err)
    assert "when it was forked counts as in use" in done.err


@both_tracers
def test_references_other_than_plain_pointers(tracer: str, tmp_path: Path):
    """XOR lists, tags in the lowest bit, mapped and shared memory, the stack of a coroutine."""
    program = built("foreign_references", "-O0")
    done = run(tracer, tmp_path, "--", program, options=["--reachability"])
    found = kinds_of(done.report)
    assert found == judged_by_valgrind(program)
    assert found["definitely_lost", 521] == found["definitely_lost", 523] == found["possibly_lost", 541] == 1
    assert all(found["still_reachable", size] == 1 for size in (547, 569, 617))
