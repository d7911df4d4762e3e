"""Programs that few try, by every tracer: they end, print and dump core as untraced, and every block that they leak is counted.

Where that cannot be, the report is incomplete and names the reason.
"""

import json
import os
import re
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.attaching import run_attached
from tests.support.program_server import run_program
from tests.support.workloads import PROGRAM, SOURCES, built, need

BYTES, BLOCKS = 1009, 24
MORE_CORE_BYTES_MAX = 4 << 20  # of the shim's own code and data, which is not left out
NAMES = re.findall(r'^\t\{ "(\w+)"', (SOURCES / "odd_programs.c").read_text(), re.MULTILINE)
TRACERS = ("bpf", "bpf --follow", "preload", "preload --follow", "plt", "inline")
# In `make test`; the others are proofs. None by inline, which wants libc without the probes of a neighbour.
SHORT_OF = {
    "preload": "closes_all coroutines first_thread_ends small_room dumps_core locks_all sandboxed refused"
    " without_counter forks_apart",
    "preload --follow": "execs_sandboxed",
    "bpf": "other_user vforks",
    "plt": "execs alarms is_killed locks_future forbids_some without_counter",
}
SHORT = {(tracer, name) for tracer, names in SHORT_OF.items() for name in names.split()}
CUT = "stacks are cut"
UNSEEN = "by exec, which was not measured"
OF_SHIM = {"no_descriptors": CUT, "execs_sandboxed": UNSEEN}
ATTACHED = {**OF_SHIM, "execs": UNSEEN}
# What cannot be whole: by tracer and program, the reason that is named.
REASONS = {
    "preload": OF_SHIM,
    "preload --follow": OF_SHIM,
    "plt": {**ATTACHED, "first_thread_ends": "libgcc_s.so.1 loaded unnoticed"},
    "inline": ATTACHED,
}
_OF_LIBC = 3 << 31  # SIGCANCEL and SIGSETXID, which posix_spawn() of glibc ignores in each child
ALWAYS_CUT = {"deep": CUT}  # 20,000 frames
UNCOUNTED = ("execs", "execs_sandboxed")  # where there is a reason: blocks that were gone with their image


def marks_of(tracer: str, name: str) -> list[pytest.MarkDecorator]:
    code = pytest.mark.changes_all_code if tracer == "bpf --follow" else pytest.mark.compares_code
    return [code] if (tracer, name) in SHORT else [code, pytest.mark.proof]


def combinations() -> list[Any]:
    return [pytest.param(tracer, name, marks=marks_of(tracer, name)) for tracer in TRACERS for name in NAMES]


@pytest.mark.parametrize(("tracer", "name"), combinations())
def test_as_untraced(tracer: str, name: str, tmp_path: Path) -> None:
    need(tracer.split()[0])
    program, report = built("odd_programs"), tmp_path / "measured" / "report.json"
    report.parent.mkdir()
    (tmp_path / "alone").mkdir()
    alone = subprocess.run(
        [program, name],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=tmp_path / "alone",
        timeout=60,
        check=False,
    )
    run = _attached if tracer in ("plt", "inline") else _started
    code, out = run(tracer, program, name, report)
    found = json.loads(report.read_text())
    reason = {**ALWAYS_CUT, **REASONS.get(tracer, {})}.get(name)
    assert (found["measurement"] == "complete") == (reason is None), found["notes"]
    assert reason is None or any(reason in note for note in found["notes"]), found["notes"]
    assert (code, out) == (alone.returncode, alone.stdout)
    sizes = [_core_bytes(tmp_path / folder) for folder in ("alone", "measured")]
    assert bool(sizes[0]) == bool(sizes[1]) and abs(sizes[0] - sizes[1]) <= MORE_CORE_BYTES_MAX, sizes
    assert sizes[0] or name != "dumps_core" or not _dumps_into_folder(), "no core file: nothing was compared"
    held = sum(
        one["inuse_objects"] for one in found["sites"] if one["inuse_space"] == BYTES * one["inuse_objects"]
    )
    assert held == (0 if reason and name in UNCOUNTED else BLOCKS)


def _changed_signals() -> None:
    """As nohup does, a shell with a job in the background, and a service that blocks signals for its children."""
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])


@pytest.mark.parametrize("tracer", ["bpf", "preload"])
def test_a_command_inherits_the_signals_of_its_caller(tracer: str) -> None:
    need(tracer)
    argv = ["grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status"]
    alone, measured = (
        subprocess.run(
            [*before, *argv], capture_output=True, timeout=100, check=False, preexec_fn=_changed_signals
        ).stdout
        for before in ([], [*PROGRAM, "-q", "--tracer", tracer, "--"])
    )
    assert [int(line.split()[1], 16) & ~_OF_LIBC for line in measured.splitlines()] == [
        int(line.split()[1], 16) & ~_OF_LIBC for line in alone.splitlines()
    ]


def _core_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("core*"))


def _dumps_into_folder() -> bool:
    """Whether the kernel writes core files into a program's folder, and we may ask it to."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    return "/" not in pattern and "|" not in pattern and bool(resource.getrlimit(resource.RLIMIT_CORE)[1])


def _started(tracer: str, program: Path, name: str, report: Path) -> tuple[int, bytes]:
    words = ["-q", "--tracer", *tracer.split(), "--json", report, "--", program, name]
    done = run_program(words, cwd=report.parent)
    status = json.loads(report.read_text())["target"]["exit_status"]
    code = os.waitstatus_to_exitcode(status)
    assert done.returncode == (code if code >= 0 else 128 - code)
    return code, done.stdout.encode()


def _attached(tracer: str, program: Path, name: str, report: Path) -> tuple[int, bytes]:
    return run_attached(tracer, [program, name, "waits"], report, cwd=report.parent)[:2]
