"""The PLT hook alone, without a keeper: who finds its agent killed stops recording, and puts its slots back."""

import subprocess
import time
from urllib.parse import quote

import pytest

from memleak_android.host.tracers.agent.session_options import SessionOptions
from tests.support.attached_program import AttachedProgram, session_name, slot_library, slot_workload, slots
from tests.support.preload_session import find_parts

pytestmark = pytest.mark.proof
SILENCE_S = 3  # SILENCE_NS of device/preload/recorder/recorder_session.c
LOOK_S = 1  # LOOK_EVERY_NS


def started_agent(name: str) -> subprocess.Popen[bytes]:
    lines = [*SessionOptions(command=()).lines(), f"await {quote(name)}", "start"]
    agent = subprocess.Popen([find_parts()[0], "preload"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert agent.stdin is not None
    agent.stdin.write("".join(f"{line}\n" for line in lines).encode())
    agent.stdin.flush()
    return agent


def attach(program: AttachedProgram, name: str) -> None:
    for _ in range(100):
        if program.do(f"attach {name} mode=plt") == ["0"]:
            return
        time.sleep(0.05)
    raise AssertionError("the agent never listened")


def test_a_killed_agent_is_noticed() -> None:
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
