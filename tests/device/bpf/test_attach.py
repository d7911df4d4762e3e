"""How the BPF tracer's probes are placed: many by one link where the kernel has such, each by a perf event where not.

And its object: the one for this kernel, else the other one with a note. And as on kernels without a ring buffer: hash maps, and perf events that carry registers and stack. Forced on this kernel;
untried below 5.10.
"""

import functools
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.local.bpf import plan_session
from tests.support.attaching import children_of
from tests.support.bpf_agent import seen_in_session, told_of_files
from tests.support.workloads import Run, built, functions, need, run

ONE_EACH, OLD = "--without-multi", "--perf-events"
BEYOND = 0x7FFFF000  # of the file's end
RING_BUFFER, PERF_EVENT_ARRAY = 27, 4  # enum bpf_map_type of linux/bpf.h
NO_RING = 0  # bytes
REMARK = "could not load the BPF object for newer kernels"
pytestmark = pytest.mark.bpf


def link_types(*extra: str) -> Counter[str]:
    """Of the links that the agent holds while its command runs: it is executed after the last of them."""

    def look(pid: int) -> Counter[str]:
        is_running = any(words.startswith("/bin/sleep") for words in children_of(pid).values())
        return held(pid) if is_running else Counter()

    need("bpf")
    return seen_in_session(SessionOptions(command=("/bin/sleep", "20")), extra, look)


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


@functools.cache
def as_usual(*command: str | Path) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        return run("bpf", Path(folder), "--", *command, codes=[0, 6])


@pytest.mark.parametrize("way", [ONE_EACH, OLD])
@pytest.mark.parametrize(
    "words",
    [
        ("deep_chain",),
        *(
            pytest.param(words, marks=pytest.mark.proof)
            for words in (("failed_calls",), ("plain_leak", "23", "1009"), ("two_arenas",))
        ),
    ],
    ids=lambda words: words[0],
)
def test_the_same_sites(way: str, words: tuple[str, ...], tmp_path: Path) -> None:
    command = (built(words[0]), *words[1:])
    usual, other = as_usual(*command), run("bpf", tmp_path, "--", *command, options=[way], codes=[0, 6])
    assert by_stack(other) == by_stack(usual) and (by_stack(usual) or words == ("failed_calls",))
    assert other.totals["alloc_objects"] == usual.totals["alloc_objects"]


def test_whole_stacks_of_a_real_program_without_a_ring(tmp_path: Path) -> None:
    command = ("/usr/bin/git", "version", "--build-options")
    if not Path(command[0]).exists():
        pytest.skip("git is not installed")
    usual, old = as_usual(*command), run("bpf", tmp_path, "--", *command, options=[OLD])
    # Until the agent knows the rules of a stack, a partial key may count it as another one (docs/design/stack-keys.md).
    assert {stack for stack, *_ in by_stack(old)} <= {stack for stack, *_ in by_stack(usual)}
    assert old.amounts() == usual.amounts() != (0, 0)
    assert {site["end"] for site in old.report["sites"]} == {"ROOT"}


def test_every_call_is_recorded_without_a_ring(tmp_path: Path) -> None:
    result = run("bpf", tmp_path, "--", built("plain_leak"), "23", "1009", options=[OLD, "--trace"])
    assert result.out.count("malloc(1009)") == 23


@pytest.mark.proof
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
    lines = [*options.bpf_lines(), *plan_session(options).lines()]
    probes = [number for number, line in enumerate(lines) if line.startswith("probe ")]
    words = lines[probes[-1]].split()
    lines[probes[-1]] = " ".join([*words[:2], *[f"{BEYOND:x}"] * 3, *words[5:]])
    agent = [find_binary("memleakd", local_arch()), "bpf"]
    done = subprocess.run(
        agent, input="\n".join([*lines, way, "start", ""]).encode(), capture_output=True, check=False
    )
    assert done.returncode != 0
    assert f"+{BEYOND:#x} in /".encode() in done.stdout


# ---- the object that is loaded


def map_types(*extra: str) -> set[int]:
    """Of the maps that the agent holds while its command runs."""
    return seen_in_session(SessionOptions(command=("/bin/sleep", "20")), extra, maps_held)


def maps_held(pid: int) -> set[int]:
    """Empty until the one that evidence goes through is there."""
    types = set(map(int, told_of_files(pid, "map_type")))
    return types if types & {RING_BUFFER, PERF_EVENT_ARRAY} else set()


@pytest.mark.parametrize(
    "extra",
    [
        (),
        pytest.param(("follow 1", "every_stack 1", "mmap 1", "events 1"), marks=pytest.mark.changes_all_code),
    ],
    ids=len,
)
def test_the_object_for_this_kernel_is_in_use(extra: tuple[str, ...]) -> None:
    """A verifier that no longer likes it would cost exact keys and time, and nothing would fail."""
    types = map_types(*extra)
    assert RING_BUFFER in types
    assert PERF_EVENT_ARRAY not in types


def test_the_fallback_object_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("bpf")
    agent = find_binary("memleakd", local_arch())
    wrapper = tmp_path / "memleakd"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = bpf ] || exec {agent} "$@"\nsed -u "s/^start$/ring_bytes {NO_RING}\\nstart/" | {agent} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("MEMLEAKD", str(wrapper))
    result = run("bpf", tmp_path, "--", built("plain_leak"), "23", "1009", codes=[0, 6])
    assert REMARK in result.out + result.err
    assert result.amounts() == (23 * 1009, 23)
