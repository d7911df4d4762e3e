"""How the BPF tracer's probes are placed: many by one link where the kernel has such, each by a perf event where not."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.local.bpf import bpf_session_lines, plan_session
from tests.support.bpf_agent import seen_in_session, told_of_files
from tests.support.workloads import Run, built, functions, need, run

ONE_EACH = "--without-multi"
BEYOND = 0x7FFFF000  # of the file's end
pytestmark = pytest.mark.bpf


def link_types(*extra: str) -> Counter[str]:
    """Of the links that the agent holds while its command runs."""
    found: list[Counter[str]] = []

    def look(pid: int) -> bool:
        found.append(held(pid))
        return len(found) > 1 and found[-1] == found[-2] and found[-1].total() > 2  # nothing more comes

    need("bpf")
    seen_in_session(SessionOptions(command=("/bin/sleep", "20")), extra, look)
    return found[-1]


def held(pid: int) -> Counter[str]:
    return Counter(told_of_files(pid, "link_type"))


def by_stack(result: Run) -> list[tuple[tuple[str, ...], int, int, str]]:
    return sorted(
        (tuple(functions(site)), site["inuse_space"], site["inuse_objects"], site["end"])
        for site in result.report["sites"]
    )


def test_a_link_holds_many_probes() -> None:
    many, one_each = link_types(), link_types("without_multi 1")
    assert "uprobe_multi" not in one_each
    if "uprobe_multi" not in many:
        pytest.skip("this kernel has no links for many uprobes that see all threads (Linux 6.10)")
    assert many.total() < one_each.total() + 12


@pytest.mark.parametrize("program", ["deep_chain", pytest.param("two_arenas", marks=pytest.mark.proof)])
def test_the_same_sites(program: str, tmp_path: Path) -> None:
    many = run("bpf", tmp_path, "--", built(program))
    one_each = run("bpf", tmp_path, "--", built(program), options=[ONE_EACH])
    assert by_stack(many) == by_stack(one_each) != []
    assert many.totals["alloc_objects"] == one_each.totals["alloc_objects"]


def test_the_same_pairs(tmp_path: Path) -> None:
    """Four programs of the tracer's serve the many functions of the set."""
    script = "import os, threading; a = [os.dup(0) for _ in range(17)]; t = threading.Thread(target=lambda: [os.pipe() for _ in range(5)]); t.start(); t.join(); os.close(a[0])"
    command = ["--", sys.executable, "-S", "-E", "-c", script]
    results = [run("bpf", tmp_path, *command, options=["--pairs", "fd", *way]) for way in ([], [ONE_EACH])]
    opened = [Counter[str](), Counter[str]()]
    for counted, result in zip(opened, results, strict=True):
        for site in result.report["sites"]:
            counted[functions(site)[0]] += site["inuse_objects"]
    assert opened[0] == opened[1]
    assert opened[0].total() >= 16 + 10


@pytest.mark.parametrize("way", ["without_multi 0", "without_multi 1"])
def test_an_address_that_takes_no_probe_is_named(way: str) -> None:
    """Among many that do: the kernel tells only that of all together one is wrong."""
    need("bpf")
    options = SessionOptions(command=("/bin/true",))
    lines = bpf_session_lines(options, plan_session(options))
    probes = [number for number, line in enumerate(lines) if line.startswith("probe ")]
    words = lines[probes[-1]].split()
    lines[probes[-1]] = " ".join([*words[:2], *[f"{BEYOND:x}"] * 3, *words[5:]])
    agent = [find_binary("memleakd", local_arch()), "bpf"]
    done = subprocess.run(
        agent, input="\n".join([*lines, way, "start", ""]).encode(), capture_output=True, check=False
    )
    assert done.returncode != 0
    assert f"+{BEYOND:#x} in /".encode() in done.stdout
