"""Sessions that are ended by force: what had arrived is in the recording, and the target goes on."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from memleak_android.host.tracers.agent.session_options import SessionOptions
from tests.support.attached_program import AttachedProgram, session_name, slot_library, slot_workload, slots
from tests.support.attaching import agents_of, descendant, interrupt, until_ended
from tests.support.builders.growing_recording import wait_for_snapshot
from tests.support.preload_session import find_parts
from tests.support.program_server import run_program, start_program
from tests.support.workloads import both_tracers, build, functions, need

LEAKS = 5
CHAIN = ["inner", "middle", "outer", "main"]


@contextmanager
def recording_session(tracer: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`record -o a.memleak` on a command that holds LEAKS blocks and waits, and the pid of that command; from when a
    safety snapshot has them all, without any --interval."""
    need(tracer)
    program = build("leaks_when_told", folder, output="program")
    words = ["record", "-o", folder / "a.memleak", "--tracer", tracer, "--", program]
    session = start_program(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert session.stdout.readline() == b"ready\n"
        session.stdin.write(b"x" * LEAKS)
        session.stdin.flush()
        wait_for_snapshot(folder / "a.memleak", LEAKS)
        yield session, descendant(session.pid, "program")
    finally:
        session.kill()
        session.communicate()


def check_cuts(folder: Path) -> None:
    """The recording cut shorter: never a stack that is wrong, never more than was held."""
    whole = (folder / "a.memleak").read_bytes()
    for tenth in range(5, 10):
        (folder / "a.memleak").write_bytes(whole[: len(whole) * tenth // 10])
        for site in reported(folder)["sites"]:
            assert functions(site)[1:5] == CHAIN and site["inuse_objects"] <= LEAKS


def reported(folder: Path) -> dict[str, Any]:
    done = run_program(["report", "--format", "json", "a.memleak"], folder)
    assert done.returncode == 6, done.stderr
    return json.loads(done.stdout)


def check_report(folder: Path) -> None:
    report = reported(folder)
    (site,) = (site for site in report["sites"] if "outer" in functions(site))
    assert (site["inuse_space"], site["inuse_objects"], site["end"]) == (LEAKS * 1013, LEAKS, "ROOT")
    assert functions(site)[1:5] == CHAIN
    assert report["measurement"] == "incomplete"
    assert any("what is held is that of the last snapshot" in note for note in report["notes"])


@both_tracers
def test_host_is_killed(tracer: str, tmp_path: Path) -> None:
    with recording_session(tracer, tmp_path) as (session, target):
        (agent,) = agents_of(session.pid)
        session.kill()
        session.wait()
        assert until_ended(agent)
        assert not until_ended(target, patience_s=0.3)
    check_report(tmp_path)
    assert until_ended(target)  # its standard input is closed now
    check_cuts(tmp_path)


@both_tracers
def test_agent_is_stuck_and_the_session_aborted(tracer: str, tmp_path: Path) -> None:
    with recording_session(tracer, tmp_path) as (session, target):
        (agent,) = agents_of(session.pid)
        os.kill(agent, signal.SIGSTOP)
        interrupt(session)
        assert session.poll() is None
        session.send_signal(signal.SIGINT)
        _, err = session.communicate(timeout=60)
        assert session.returncode == 130
        path = tmp_path / "a.memleak"
        assert [line for line in err.decode().splitlines() if line][-2:] == [
            f"memleak-android: {path} holds what had arrived, stack bytes included; run `report {path}`",
            "memleak-android: error: aborted",
        ]
        assert until_ended(agent)
    check_report(tmp_path)
    assert until_ended(target)


SILENCE_S = 3  # SILENCE_NS of device/preload/recorder/recorder_session.c
LOOK_S = 1  # LOOK_EVERY_NS


def started_agent(name: str) -> subprocess.Popen[bytes]:
    lines = [*SessionOptions(command=()).lines(), f"await {quote(name)}", "start"]
    agent = subprocess.Popen([find_parts()[0], "preload"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    agent.stdin.write("".join(f"{line}\n" for line in lines).encode())
    agent.stdin.flush()
    return agent


def attach(program: AttachedProgram, name: str) -> None:
    for _ in range(100):
        if program.do(f"attach {name} mode=plt") == ["0"]:
            return
        time.sleep(0.05)
    raise AssertionError("the agent never listened")


@pytest.mark.proof
def test_a_killed_agent_is_noticed() -> None:
    """By the PLT hook alone, without a keeper: the program stops recording and puts its slots back."""
    name = session_name()
    agent = started_agent(name)
    try:
        with AttachedProgram(slot_workload("-Wl,-z,now")) as program:
            before = slots(program.process.pid)
            attach(program, name)
            program.do("leak 10 31")
            time.sleep(0.5)
            assert {slot for slot, held in slots(program.process.pid).items() if before[slot] != held}
            agent.kill()
            agent.wait()
            end = time.monotonic() + SILENCE_S + 2 * LOOK_S
            while time.monotonic() < end:  # it is noticed by who allocates
                program.do("leak 10 32")
                time.sleep(0.1)
            assert program.do(f"open {slot_library()}") == ["ok"]  # the next moment at which it is safe
            after = slots(program.process.pid)
            assert {slot for slot in before if after[slot] != before[slot]} == set()
            assert program.do("leak 10 33", "call leak_here 34", "free") == ["ok"] * 3
            program.end()
    finally:
        agent.kill()
        agent.wait()
