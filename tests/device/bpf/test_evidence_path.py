"""Cost of evidence in BPF instructions, counted in the program as the kernel translated it."""

from __future__ import annotations

from pathlib import Path

import pytest

from memleak_android.host.tracers.agent.session_options import SessionOptions
from tests.support.bpf_agent import seen_in_session
from tests.support.bpf_programs import (
    ATOMIC_64,
    EXIT,
    Instruction,
    is_call_of,
    kernel_symbol,
    shortest,
    translated,
)
from tests.support.workloads import need

ALLOC_OBJECTS = 8  # offset of alloc_objects in struct ml_bpf_key (device/bpf/session.h)
MOVE, MOVE_32 = 0xB7, 0xB4  # of an immediate
RECORD = 144 + 21 * 8 + 512  # struct ml_evidence, its registers and the smallest slice
LIMIT = 80  # what the project set itself: beyond plain accounting, on the 512-byte path


def return_program(*extra: str) -> list[Instruction]:
    """The program of all returns, translated for a session with these lines."""
    options = SessionOptions(command=("/bin/sleep", "5"), stack_bytes=512)
    return seen_in_session(options, extra, lambda agent: translated("block_return", agent))


def test_fewer_than_eighty_instructions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the counted allocation to the return: with a record of registers and 512 bytes sent, and without."""
    need("bpf")
    if not kernel_symbol("__bpf_call_base"):
        pytest.skip("the kernel does not tell the addresses of its symbols")
    plain, full = return_program("no_evidence 2"), return_program()
    steps = []
    for program in (plain, full):
        counted = {
            i for i, one in enumerate(program) if one.code == ATOMIC_64 and one.offset == ALLOC_OBJECTS
        }
        exits = {i for i, one in enumerate(program) if one.code == EXIT}
        _, start = shortest(program, 0, counted)
        sent = {i for i, one in enumerate(program) if is_call_of(one, "bpf_ringbuf_submit")}
        if program is full:
            assert sent, "no record is sent"
            reserved = {
                i for i, one in enumerate(program) if one.code in (MOVE, MOVE_32) and one.immediate == RECORD
            }
            before, at = shortest(program, start, reserved)
            there, at = shortest(program, at, sent)
            steps.append(before + there + shortest(program, at, exits)[0])
        else:
            assert not sent
            steps.append(shortest(program, start, exits)[0])
    with capsys.disabled():
        print(f"\nevidence path: {steps[1] - steps[0]} BPF instructions beyond plain accounting", end=" ")
    assert steps[1] - steps[0] < LIMIT
