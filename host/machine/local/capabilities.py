"""Capabilities of this machine for tracers, found by trying them, never by version numbers."""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_BPF_SYSCALL = {"x86_64": 321, "aarch64": 280}
_PERF_EVENT_OPEN_SYSCALL = {"x86_64": 298, "aarch64": 241}
_PERF_FLAG_FD_CLOEXEC = 8

# <linux/bpf.h>
_BPF_MAP_CREATE, _BPF_PROG_LOAD = 0, 5
_MAP_TYPE_ARRAY, _MAP_TYPE_RINGBUF = 2, 27
_PROG_TYPE_KPROBE = 2
_FLAG_MMAPABLE = 1 << 10
_ATTRIBUTE_BYTES = 128
_HELPER_PROBE_READ_USER, _HELPER_GET_ATTACH_COOKIE = 112, 174
_ATTR_DISABLED = 1  # bit 0 of perf_event_attr's flags: no breakpoint is inserted


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Errors are texts of errno, "" = it works."""

    machine: str
    kernel: str  # release, to be shown only
    uid: int
    bpf_error: str  # loading a program
    ring_buffer_error: str
    mappable_array_error: str
    probe_read_user_error: str
    attach_cookie_error: str
    uprobe_error: str  # perf_event_open of a uprobe
    has_btf: bool
    lockdown: str  # none | integrity | confidentiality; "" = not built in

    @property
    def bpf_refusal(self) -> str:
        """Why the BPF tracer cannot run here, "" if it can."""
        for what, error in (
            ("BPF programs may not be loaded", self.bpf_error),
            ("uprobes may not be placed", self.uprobe_error),
        ):
            if error:
                return f"{what} ({error})"
        return ""


def probe_local() -> Capabilities:
    """Tries each feature once and undoes it."""
    return Capabilities(
        machine=platform.machine(),
        kernel=platform.release(),
        uid=os.geteuid(),
        bpf_error=_try(lambda: _load_program(_RETURN_0)),
        ring_buffer_error=_try(lambda: _create_map(_MAP_TYPE_RINGBUF, 0, 0, os.sysconf("SC_PAGESIZE"), 0)),
        mappable_array_error=_try(lambda: _create_map(_MAP_TYPE_ARRAY, 4, 8, 1, _FLAG_MMAPABLE)),
        probe_read_user_error=_try(lambda: _load_program(_READ_USER)),
        attach_cookie_error=_try(lambda: _load_program(_ATTACH_COOKIE)),
        uprobe_error=_try(_open_uprobe),
        has_btf=os.path.exists("/sys/kernel/btf/vmlinux"),
        # The bracketed word of `none [integrity] confidentiality`.
        lockdown=_read("/sys/kernel/security/lockdown").partition("[")[2].partition("]")[0],
    )


def _instruction(code: int, registers: int = 0, value: int = 0) -> bytes:
    """struct bpf_insn: code, destination (low half) and source register, 16-bit offset, constant."""
    return struct.pack("<BBhi", code, registers, 0, value)


_MOVE_CONSTANT, _MOVE, _ADD_CONSTANT, _CALL, _EXIT = 0xB7, 0xBF, 0x07, 0x85, 0x95
_RETURN_0 = (_instruction(_MOVE_CONSTANT), _instruction(_EXIT))
_ATTACH_COOKIE = (_instruction(_CALL, 0, _HELPER_GET_ATTACH_COOKIE), *_RETURN_0)
_READ_USER = (
    _instruction(_MOVE, 0xA1),  # r1 = r10
    _instruction(_ADD_CONSTANT, 1, -8),
    _instruction(_MOVE_CONSTANT, 2, 8),
    _instruction(_MOVE_CONSTANT, 3, 0),
    _instruction(_CALL, 0, _HELPER_PROBE_READ_USER),
    *_RETURN_0,
)


def _load_program(instructions: tuple[bytes, ...]) -> int:
    code = ctypes.create_string_buffer(b"".join(instructions))
    licence = ctypes.create_string_buffer(b"GPL")
    head = struct.pack(
        "<IIQQ", _PROG_TYPE_KPROBE, len(instructions), ctypes.addressof(code), ctypes.addressof(licence)
    )
    return _bpf(_BPF_PROG_LOAD, head)


def _create_map(kind: int, key_bytes: int, value_bytes: int, entries: int, flags: int) -> int:
    return _bpf(_BPF_MAP_CREATE, struct.pack("<IIIII", kind, key_bytes, value_bytes, entries, flags))


def _bpf(command: int, head: bytes) -> int:
    attributes = ctypes.create_string_buffer(head, _ATTRIBUTE_BYTES)
    return _system_call(_BPF_SYSCALL, command, attributes, _ATTRIBUTE_BYTES)


def _open_uprobe() -> int:
    """A disabled uprobe on this interpreter's ELF header: the kernel checks it but inserts nothing."""
    kind = _read("/sys/bus/event_source/devices/uprobe/type")
    if not kind.isdecimal():
        raise OSError(errno.ENODEV, "no uprobe PMU")
    name = ctypes.create_string_buffer(b"/proc/self/exe")
    attributes = ctypes.create_string_buffer(112)  # PERF_ATTR_SIZE_VER5
    struct.pack_into("<II", attributes, 0, int(kind), len(attributes))
    struct.pack_into("<Q", attributes, 40, _ATTR_DISABLED)
    struct.pack_into("<QQ", attributes, 56, ctypes.addressof(name), 0)
    return _system_call(
        _PERF_EVENT_OPEN_SYSCALL, attributes, os.getpid(), -1, -1, ctypes.c_ulong(_PERF_FLAG_FD_CLOEXEC)
    )


def _system_call(numbers: dict[str, int], *arguments: Any) -> int:
    number = numbers.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"not known for {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def _try(action: Callable[[], int]) -> str:
    try:
        os.close(action())
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return ""
