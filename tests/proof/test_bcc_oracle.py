"""Three tracers on one program: our BPF object, our source compiled by bcc, and bcc's own memleak.

The first two share no code on the target. They must say the same of every site, the third the same in all.
"""

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.machine.binaries import find_binary
from memleak_android.host.tracers.bcc import debian_module
from tests.support.attaching import attached, result, waiting
from tests.support.running_program import wait_until_asleep
from tests.support.workloads import Run, bpf_refusal, built, run

SOURCES = Path("/usr/src")
MERGED = Path(__file__).resolve().parents[2] / "build" / "kernel-headers"


def bcc_environment() -> dict[str, str]:
    """The environment in which --tracer bcc works. Skips, with the reason, where it cannot."""
    reason = debian_module.refusal() or bpf_refusal()
    if reason:
        pytest.skip(f"no bcc here: {reason}")
    own = next(iter(sorted(SOURCES.glob("linux-headers-*-amd64"))), None)
    if own is None:
        pytest.skip("no kernel headers in /usr/src (apt-get install linux-headers-amd64)")
    target = MERGED / own.name
    if not target.exists():
        for part in (own.with_name(own.name.replace("-amd64", "-common")), own):
            _link(part, target)
    return dict(os.environ, BCC_KERNEL_SOURCE=str(target))


def _link(source: Path, target: Path) -> None:
    """Every file of source as a symbolic link below target."""
    for folder, _, names in os.walk(source):
        linked = target / Path(folder).relative_to(source)
        linked.mkdir(parents=True, exist_ok=True)
        for name in names:
            (linked / name).unlink(missing_ok=True)
            (linked / name).symlink_to(Path(folder) / name)


pytestmark = [pytest.mark.proof, pytest.mark.compares_code]

MEMLEAK = Path("/usr/sbin/memleak-bpfcc")
# memleak of bcc 0.26, as it is, but for the argument of bpf_attach_uprobe() that its Python side leaves to chance.
RUN_MEMLEAK = """
import ctypes, runpy, sys
from bcc import lib
attach_uprobe = lib.bpf_attach_uprobe
attach_uprobe.argtypes = [*attach_uprobe.argtypes, ctypes.c_uint32]
class Library:
    def __getattr__(self, name):
        return (lambda *words: attach_uprobe(*words, 0)) if name == "bpf_attach_uprobe" else getattr(lib, name)
import bcc
bcc.lib = Library()
sys.argv = ["memleak", *sys.argv[1:]]
runpy.run_path("/usr/sbin/memleak-bpfcc", run_name="__main__")
"""
PROGRAMS = {
    "paths of equal depth, threads, signals": (),
    "failed calls": ("failed_calls", "realloc"),
    "two arenas": ("two_arenas",),
    "2,000 stacks": ("many_stacks", "2000", "2000"),
}


def command(name: str) -> list[str | Path]:
    words = PROGRAMS[name]
    return [built(words[0]), *words[1:]] if words else [find_binary("memleak-demo", "x86_64")]


def sites_of(result: Run) -> list[tuple[Any, ...]]:
    """Of each site its stack, function by function and line by line, and what it holds and has allocated.

    The demo's traffic, which holds nothing, is not limited by number but by time.
    """
    names = ("kind", "end", "inuse_space", "inuse_objects", "alloc_space", "alloc_objects")
    return sorted(
        (
            *(site[name] for name in names),
            *((frame["function"], frame.get("line")) for frame in site["frames"]),
        )
        for site in result.sites("user") + result.sites("runtime")
        if site["inuse_objects"]
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_of_ours_say_the_same_of_every_site(name: str, tmp_path: Path) -> None:
    environment = bcc_environment()
    by_bcc, by_bpf = (
        run(tracer, tmp_path, "--", *command(name), environment=environment) for tracer in ("bcc", "bpf")
    )
    assert by_bcc.report["measurement"] == by_bpf.report["measurement"] == "complete"
    assert sites_of(by_bcc) == sites_of(by_bpf)
    assert by_bcc.totals["unattributed_objects"] == 0


def test_bccs_own_memleak_says_the_same_in_all(tmp_path: Path) -> None:
    environment = bcc_environment()
    if not MEMLEAK.exists():
        pytest.skip("memleak-bpfcc is not installed (apt-get install bpfcc-tools)")
    with waiting([built("leaks_when_told")], "leaks_when_told") as (target, pid):
        argv = ["/usr/bin/python3", "-c", RUN_MEMLEAK, *f"-p {pid} -o 0 -T 100 5 2".split()]
        with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as tool:
            assert any("Top 100 stacks" in line for line in tool.stdout)  # its probes are set
            leak(target, 23)
            out = tool.communicate(timeout=120)[0].rpartition("Top 100 stacks")[2]
    found = [(int(size), int(count)) for size, count in re.findall(r"(\d+) bytes in (\d+) allocations", out)]
    assert (sum(size for size, _ in found), sum(count for _, count in found)) == (23 * 1013, 23), out


def leak(target: subprocess.Popen[bytes], times: int) -> None:
    target.stdin.write(b"x" * times)
    target.stdin.flush()


def of_process(tracer: str, environment: dict[str, str], folder: Path) -> Run:
    """A session with a process that leaks 7 blocks during it."""
    report = folder / f"{tracer}.json"
    with (
        waiting([built("leaks_when_told")], "leaks_when_told") as (target, pid),
        attached(pid, report, tracer=tracer, env=environment) as session,
    ):
        leak(target, 7)
        wait_until_asleep(pid)
        session.send_signal(signal.SIGINT)
        return Run(0, "", "", result(session, report))


def test_a_process_that_runs(tmp_path: Path) -> None:
    environment = bcc_environment()
    by_bcc, by_bpf = (of_process(tracer, environment, tmp_path) for tracer in ("bcc", "bpf"))
    assert by_bcc.amounts() == (7 * 1013, 7)
    assert sites_of(by_bcc) == sites_of(by_bpf)
