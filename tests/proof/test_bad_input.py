"""External failures: one clear line, the right exit code, no probe and no process left behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.workloads import PROGRAM, both_tracers, build, built, functions, need, run

ABORTED, USAGE, TARGET, TRACER, INCOMPLETE = 130, 2, 4, 5, 6


def only_error(text: str) -> str:
    (line,) = (line for line in text.splitlines() if "error:" in line)
    assert "Traceback" not in text and line.startswith("memleak-android: error: ")
    return line


def refused(words: list[str | Path], code: int, **how: object) -> str:
    done = subprocess.run(
        list(map(str, [*PROGRAM, *words])),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **how,  # type: ignore[call-overload]
    )
    assert done.returncode == code, done.stderr
    return only_error(done.stderr)


def test_pid_that_is_not_there() -> None:
    with subprocess.Popen(["/usr/bin/true"]) as process:
        process.wait()
    assert str(process.pid) in refused(["--pid", str(process.pid)], TARGET)


def test_pid_of_another_user_without_rights() -> None:
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root, to become nobody")
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    done = subprocess.run(
        [*words, *PROGRAM, "--pid", str(os.getpid())], capture_output=True, text=True, timeout=60, check=False
    )
    if "No module named" in done.stderr or "Permission denied" in done.stderr[:200]:
        pytest.skip("nobody may not read the repository here")
    assert done.returncode in (TARGET, TRACER), done.stderr
    assert str(os.getpid()) in only_error(done.stderr)


@both_tracers
def test_static_program(tracer: str, tmp_path: Path) -> None:
    program = build("plain_leak", tmp_path, "-static", output="static")
    result = run(tracer, tmp_path, "--", program, "7", "11", codes=[0, TARGET, TRACER])
    if result.code:
        assert len(result.errors) == 1 and "static" in result.errors[0]
    else:
        assert result.amounts() == (77, 7)


def test_process_that_ends_while_attaching(tmp_path: Path) -> None:
    need("bpf")
    for delay in (0.3, 0.6, 0.9, 1.2):
        with subprocess.Popen(["/usr/bin/sleep", str(delay)]) as process:
            done = subprocess.run(
                [*PROGRAM, "--pid", str(process.pid)],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        assert done.returncode in (0, TARGET, INCOMPLETE), done.stderr
        if done.returncode == TARGET:
            only_error(done.stderr)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("recording")
    argv = [
        *PROGRAM,
        "--tracer",
        "preload",
        "record",
        "-o",
        "r.memleak",
        "--",
        str(built("plain_leak")),
        "7",
        "11",
    ]
    argv = [*PROGRAM, "record", "--tracer", "preload", *argv[argv.index("-o") :]]
    subprocess.run(argv, cwd=folder, check=True, capture_output=True, timeout=60)
    return (folder / "r.memleak").read_bytes()


def test_recording_cut_anywhere(recording: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.memleak"
    cuts = {0, 1, 15, 16, 40, len(recording) - 1, *random.Random(7).sample(range(len(recording)), 6)}
    for cut in sorted(cuts):
        path.write_bytes(recording[:cut])
        done = subprocess.run(
            [*PROGRAM, "report", path], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode in (USAGE, INCOMPLETE), (cut, done.returncode, done.stderr)
        if done.returncode == USAGE:
            only_error(done.stderr)


@pytest.mark.parametrize("kind", ["random", "version", "absent"])
def test_file_that_is_not_a_recording(kind: str, recording: bytes, tmp_path: Path) -> None:
    path = tmp_path / "some.memleak"
    if kind == "random":
        path.write_bytes(random.Random(5).randbytes(70_000))
    elif kind == "version":
        path.write_bytes(recording[:6] + b"\x63\x00" + recording[8:])
    assert "some.memleak" in refused(["report", path], USAGE)


@both_tracers
@pytest.mark.parametrize(
    "after_s",
    [
        *(0.05, 0.7, 1.2),
        *(pytest.param(after_s, marks=pytest.mark.proof) for after_s in (0.3, 2.0, 3.0)),
    ],
)
def test_interrupt_at_any_moment(tracer: str, after_s: float, tmp_path: Path) -> None:
    """One Ctrl-C: a report of what was allocated until then, or nothing yet to report; the agent is gone."""
    need(tracer)
    report = tmp_path / "report.json"
    argv: list[str | Path] = [*PROGRAM, "--tracer", tracer, "--json", report, "--", built("waits"), "7"]
    process = subprocess.Popen(
        argv, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(after_s)
    agents = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    # Before our own code is read, Python has its own words for it.
    if "Traceback" not in err or "cli.py" in err:
        assert process.returncode in (0, ABORTED, INCOMPLETE, -signal.SIGINT), err
        assert "Traceback" not in err
    if process.returncode in (0, INCOMPLETE):
        check_beginning(json.loads(report.read_text()))
    assert not [pid for pid in agents if is_agent(pid)]


def check_beginning(report: dict[str, Any]) -> None:
    """Of `waits 7`: the first blocks, however many; each of its size, and by main or without a stack."""
    totals = report["totals"]
    blocks = totals["inuse_objects"]
    assert 0 <= blocks <= 7 and totals["inuse_space"] == 1009 * blocks
    for site in report["sites"]:
        assert functions(site)[:2] == ["malloc", "main"] and site["end"] == "ROOT", site
        assert site["inuse_space"] == 1009 * site["inuse_objects"]
    assert sum(site["inuse_objects"] for site in report["sites"]) == blocks - totals["unattributed_objects"]


def is_agent(pid: str) -> bool:
    try:
        return "memleakd" in Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return False


def mounted(folder: Path) -> bool:
    words: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder]
    return subprocess.run(words, check=False).returncode == 0


def test_full_disk(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if os.geteuid() or not mounted(small):
        pytest.skip("may not mount a small file system here")
    try:
        (small / "filling").write_bytes(bytes(60 << 10))
        words: list[str | Path] = [
            "--tracer",
            "preload",
            "--json",
            small / "r.json",
            "--",
            built("many_stacks"),
            "1000",
        ]
        line = refused(words, INCOMPLETE)  # the text went to stdout
        assert "r.json" in line and "space" in line.lower()
    finally:
        subprocess.run(["umount", small], check=True)
