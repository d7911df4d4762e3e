"""Cost of evidence in BPF instructions, as the kernel translated them, and how much of the ring only verifies keys."""

import ctypes
import functools
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest

from memleak_android.host.tracers.agent.session_options import SessionOptions
from tests.support.bpf_agent import (
    ATOMIC_64,
    EXIT,
    Instruction,
    is_call_of,
    kernel_symbol,
    seen_in_session,
    shortest,
    translated,
)
from tests.support.gcc import DEVICE
from tests.support.workloads import built, need

PIDFD_GETFD = 438  # the same number on all architectures
BLOCKS = 100_000  # evidence of one key is due again at each new height: 32 blocks, 1024, 32768
LEAST_RECORD = 144 + 21 * 8  # struct ml_evidence and its registers
ALLOC_OBJECTS = 8  # offset of alloc_objects in struct ml_bpf_key (device/bpf/session.h)
MOVE, MOVE_32 = 0xB7, 0xB4  # of an immediate
RECORD = 144 + 21 * 8 + 512  # struct ml_evidence, its registers and the smallest slice
LIMIT = 80  # what the project set itself: beyond plain accounting, on the 512-byte path

LAYOUT = """
#include <stddef.h>
#include <stdio.h>
#include "bpf/session.h"
int main(void)
{
	return printf("%zu %zu", sizeof(struct ml_bpf_code), offsetof(struct ml_bpf_code, verifying_sent)) < 0;
}
"""


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


# ---- what the programs sent for verification, by their own count, less what the agent took


@functools.cache
def layout() -> tuple[int, int]:
    """Bytes of struct ml_bpf_code, and where verifying_sent and verifying_taken stand in it."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "layout"
        argv = ["gcc", "-I", DEVICE, "-I", DEVICE / "bpf", "-x", "c", "-", "-o", program]
        subprocess.run(argv, input=LAYOUT, text=True, check=True)
        size, offset = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    return int(size), int(offset)


def counts(agent: int) -> tuple[int, int]:
    """verifying_sent and verifying_taken, out of the map that the agent holds."""
    size, offset = layout()
    for entry in Path(f"/proc/{agent}/fdinfo").iterdir():
        if f"value_size:\t{size}\n" in entry.read_text():
            process = os.pidfd_open(agent)
            descriptor = ctypes.CDLL(None).syscall(PIDFD_GETFD, process, int(entry.name), 0)
            with mmap.mmap(descriptor, 3 * mmap.PAGESIZE, prot=mmap.PROT_READ) as code:
                found = struct.unpack_from("<QQ", code, offset)
            os.close(descriptor)
            os.close(process)
            return found[0], found[1]
    return 0, 0


def all_taken(agent: int) -> int:
    """The bytes that verified keys, once there were three records of them and nothing is left in the ring."""
    try:
        sent, taken = counts(agent)
    except OSError:  # ended
        return 0
    return sent if sent >= 3 * LEAST_RECORD and sent == taken else 0


@pytest.mark.changes_all_code
def test_what_was_sent_is_what_the_agent_took() -> None:
    """A count that only grew would hold back, from half a ring on, all evidence that verifies keys."""
    need("bpf")
    command = ("/bin/sh", "-c", f"{built('plain_leak')} {BLOCKS} 100; exec sleep 20")
    assert seen_in_session(SessionOptions(command=command, follow=True), (), all_taken)
