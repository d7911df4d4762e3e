"""A process started by another one, which finds its session in the file beside the shim: Android's wrap.PACKAGE."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from memleak_android.host.wire.blocks import WIRE_VERSION, ProcessEvent
from tests.support.gcc import gcc
from tests.support.preload_session import await_process, find_parts
from tests.support.workloads import FLAGS

SOURCE = Path(__file__).parents[1] / "programs" / "preload_workload.c"


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("await") / "workload"
    gcc(*FLAGS, "-fno-builtin", "-w", SOURCE, "-o", program, "-ldl")
    return program


@dataclass
class Outside:
    """A program started with a copy of the shim as its LD_PRELOAD, and nothing else."""

    folder: Path
    session: str
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        shutil.copyfile(find_parts()[1], self.folder / "m.so")
        (self.folder / "m.so.session").write_text(f"{self.session}\n")

    def start(self, *command: str | Path) -> None:
        environment = {**os.environ, "LD_PRELOAD": str(self.folder / "m.so")}
        self.running.append(subprocess.Popen(list(map(str, command)), env=environment))

    def exit_codes(self) -> list[int]:
        return [process.wait(30) for process in self.running]


def made_up() -> str:
    return f"memleak-test-{os.getpid()}:{secrets.randbits(64) | 1:016x}"


def test_an_awaited_process_joins_by_the_file(workload: Path, tmp_path: Path) -> None:
    outside = Outside(tmp_path, made_up())
    session = await_process(outside.session, lambda: outside.start(workload, "many", "1000", "31"))
    assert session.sizes() == {31: 1000}
    assert session.processes == [
        (outside.running[0].pid, ProcessEvent.START), (outside.running[0].pid, ProcessEvent.EXIT),
    ]  # fmt: skip
    assert outside.exit_codes() == [0]


def test_it_finds_the_user_s_environment(workload: Path, tmp_path: Path) -> None:
    outside = Outside(tmp_path, made_up())
    await_process(outside.session, lambda: outside.start(workload, "environment"))
    assert outside.exit_codes() == [0]


def test_the_session_goes_along_by_exec(workload: Path, tmp_path: Path) -> None:
    outside = Outside(tmp_path, made_up())
    session = await_process(outside.session, lambda: outside.start(workload, "execs"))
    assert session.sizes() == {1031: 5}
    assert outside.exit_codes() == [0]


@pytest.mark.parametrize("text", ["", "no-nonce", "name:0123", "name:zzzzzzzzzzzzzzzz", "x" * 500])
def test_a_file_that_names_no_session_changes_nothing(workload: Path, tmp_path: Path, text: str) -> None:
    outside = Outside(tmp_path, text)
    outside.start(workload, "many", "1000", "31")
    assert outside.exit_codes() == [0]


def test_one_session_with_two_processes_ends_with_the_last(workload: Path, tmp_path: Path) -> None:
    outside = Outside(tmp_path, made_up())

    def start_both() -> None:
        outside.start("sh", "-c", "sleep 0.3")
        outside.start(workload, "many", "100", "37")

    session = await_process(outside.session, start_both)
    assert session.sizes()[37] == 100
    assert len({pid for pid, _ in session.processes}) == 2


def error_of(verb: str, *lines: str) -> str:
    agent, _ = find_parts()
    words = "".join(f"{line}\n" for line in (f"wire {WIRE_VERSION}", *lines, "start", "stop"))
    done = subprocess.run([agent, verb], input=words.encode(), capture_output=True, check=False)
    assert done.returncode in (2, 5)
    return done.stdout.decode(errors="replace")


def test_refusals() -> None:
    await_line = f"await {made_up()}"
    assert "no process loaded the recorder" in error_of("preload", await_line)
    assert "more than one target" in error_of("preload", await_line, "arg true")
    assert "could not listen for the target: Invalid argument" in error_of("preload", "await name")
    assert "only the preload tracer" in error_of("bpf", await_line)
