"""How much of the ring only verifies keys, by the programs' own count: what they sent of it, less what the agent took."""

from __future__ import annotations

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
from tests.support.bpf_agent import seen_in_session
from tests.support.workloads import built, need

DEVICE = Path(__file__).resolve().parents[3] / "device"
LAYOUT = """
#include <stddef.h>
#include <stdio.h>
#include "bpf/session.h"
int main(void)
{
	return printf("%zu %zu", sizeof(struct ml_bpf_code), offsetof(struct ml_bpf_code, verifying_sent)) < 0;
}
"""
PIDFD_GETFD = 438  # the same number on all architectures
BLOCKS = 100_000  # evidence of one key is due again at each new height: 32 blocks, 1024, 32768
LEAST_RECORD = 144 + 21 * 8  # struct ml_evidence and its registers


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


def test_what_was_sent_is_what_the_agent_took() -> None:
    """A count that only grew would hold back, from half a ring on, all evidence that verifies keys."""
    need("bpf")
    command = ("/bin/sh", "-c", f"{built('plain_leak')} {BLOCKS} 100; exec sleep 20")
    assert seen_in_session(SessionOptions(command=command, follow=True), (), all_taken)
