"""The agent of a BPF session while it runs, and its programs as the kernel translated them.

bpf(2): BPF_PROG_GET_FD_BY_ID, BPF_OBJ_GET_INFO_BY_FD.
"""

import contextlib
import ctypes
import functools
import os
import struct
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.local.bpf import plan_session

PATIENCE_S = 100.0
T = TypeVar("T")

SYS_BPF = 321  # x86_64
PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD = 13, 15

# Instruction encoding: Documentation/bpf/standardization/instruction-set.rst
JMP, JMP32 = 0x05, 0x06
CALL, EXIT = 0x85, 0x95
ATOMIC_64 = 0xDB

_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: ctypes.Array[ctypes.c_char]) -> int:
    result: int = _libc.syscall(SYS_BPF, command, attributes, len(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf({command})")
    return result


@dataclass(frozen=True)
class Instruction:
    code: int
    offset: int
    immediate: int


def told_of_files(pid: int, field: str) -> list[str]:
    """The values of this field of /proc/PID/fdinfo, of all files that have it."""
    found = list[str]()
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            lines = entry.read_text().splitlines()
            found += [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return found


def seen_in_session(options: SessionOptions, extra: tuple[str, ...], look: Callable[[int], T]) -> T:
    """What look(the agent's pid) finds as soon as it finds something, or at the last.

    extra: configuration lines behind those of the options.
    """
    lines = [*options.bpf_lines(), *plan_session(options).lines(), *extra, "start"]
    with subprocess.Popen(
        [find_binary("memleakd", local_arch()), "bpf"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as agent:
        agent.stdin.write("\n".join(lines) + "\n")
        agent.stdin.flush()
        deadline = time.monotonic() + PATIENCE_S
        found = look(agent.pid)
        while not found and time.monotonic() < deadline:
            time.sleep(0.05)
            found = look(agent.pid)
        agent.stdin.close()
    return found


def _info(fd: int, instructions: ctypes.Array[ctypes.c_char] | None) -> bytes:
    """struct bpf_prog_info; its translated instructions go into the buffer."""
    size = len(instructions) if instructions is not None else 0
    address = ctypes.addressof(instructions) if instructions is not None else 0
    info = ctypes.create_string_buffer(struct.pack("=II8sIIQQ", 0, 0, b"", 0, size, 0, address), 232)
    attributes = ctypes.create_string_buffer(struct.pack("=IIQ", fd, len(info), ctypes.addressof(info)), 16)
    _bpf(OBJ_GET_INFO_BY_FD, attributes)
    return info.raw


def _programs(pid: int) -> Iterator[tuple[str, int, bytes]]:
    """Name (15 characters), descriptor and struct bpf_prog_info of each program that the process holds."""
    for number in sorted(map(int, told_of_files(pid, "prog_id"))):
        fd = _bpf(PROG_GET_FD_BY_ID, ctypes.create_string_buffer(struct.pack("=III", number, 0, 0), 12))
        try:
            info = _info(fd, None)
            yield info[64:80].split(b"\0")[0].decode(), fd, info
        finally:
            os.close(fd)


def loaded(pid: int) -> set[str]:
    """Names of the programs that the process holds, 15 characters of each."""
    return {name for name, _, _ in _programs(pid)}


def translated(name: str, pid: int) -> list[Instruction]:
    """The instructions of the program of this name (15 characters count) that the process holds; [] = none yet."""
    for found, fd, info in _programs(pid):
        if found == name[:15]:
            code = ctypes.create_string_buffer(*struct.unpack_from("=I", info, 20))
            _info(fd, code)
            return [Instruction(c, o, i) for c, _, o, i in struct.iter_unpack("=BBhi", code.raw)]
    return []


@functools.cache
def kernel_symbol(name: str) -> int:
    """Its address, 0 if the kernel hides it."""
    for line in Path("/proc/kallsyms").read_text().splitlines():
        address, _, symbol = line.split()[:3]
        if symbol == name:
            return int(address, 16)
    return 0


def is_call_of(instruction: Instruction, helper: str) -> bool:
    """A translated call holds the helper's distance from __bpf_call_base."""
    base, target = kernel_symbol("__bpf_call_base"), kernel_symbol(helper)
    return bool(base and target) and instruction.code == CALL and instruction.immediate == target - base


def _next(program: list[Instruction], at: int) -> list[int]:
    one = program[at]
    if one.code == EXIT:
        return []
    if one.code & 7 in (JMP, JMP32) and one.code != CALL:
        target = at + 1 + (one.immediate if one.code == 0x06 else one.offset)
        return [target] if one.code in (0x05, 0x06) else [target, at + 1]
    return [at + 1]


def shortest(program: list[Instruction], start: int, ends: set[int]) -> tuple[int, int]:
    """(steps, end): the fewest instructions from `start` to one of `ends`; a call counts as one."""
    queue, seen = deque([(start, 0)]), {start}
    while queue:
        at, steps = queue.popleft()
        if at in ends:
            return steps, at
        for target in _next(program, at):
            if target not in seen and 0 <= target < len(program):
                seen.add(target)
                queue.append((target, steps + 1))
    raise AssertionError(f"no way from {start} to {sorted(ends)}")
