"""A process of this machine: its checks, files, linker data and memory limits."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from memleak_android.host.elf.dynamic import DT_DEBUG, ElfFile
from memleak_android.host.errors import TargetError
from memleak_android.host.machine.linker_command import words_of_program
from memleak_android.host.machine.parse import ProcessStatus, parse_auxv, parse_maps, parse_status
from memleak_android.unwind.abandonable_calls import Progress, call
from memleak_android.unwind.elf_headers import ELFCLASS32, PT_DYNAMIC
from memleak_android.unwind.file_reading import file_status, opened
from memleak_android.unwind.maps import AddressSpace, Mapping

_DELETED = " (deleted)"
_PARENTS_OF_KERNEL_THREADS = (0, 2)  # 2 is kthreadd
_AT_BASE, _AT_ENTRY = 7, 9  # <elf.h>
_LOADED_OBJECTS_MAX = 4096
_COMMAND_BYTES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class LoadedObject:
    """An ELF file in a process.

    path: the process's name of it.
    open_path: a path by which we can open it.
    dynamic: address of the dynamic section in the copy that the dynamic linker lists, 0 = unknown. dlmopen() makes more copies.
    """

    path: str
    open_path: str
    dynamic: int = 0


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A running process that passed all checks when it was opened.

    root: prefix of the process's paths, "" if it sees the same files as we do.
    """

    pid: int
    command: str  # shell-quoted command line
    root: str
    name: str

    @classmethod
    def open(cls, pid: int) -> LocalProcess:
        """Raises TargetError: not there, a thread, ended, a kernel thread, not ours, 32-bit."""
        with _reading(pid):
            status = _status(pid)
            check_status(pid, status)
            _check_access(pid, status)
            try:
                command = command_line(pid) or status.name
            except TimeoutError:
                command = status.name
            return cls(pid, command, _root(pid), status.name)

    def mappings(self) -> list[Mapping]:
        with _reading(self.pid):
            return parse_maps(read_text(f"/proc/{self.pid}/maps"))

    def open_path(self, mapping: Mapping) -> str:
        """A path that opens the mapped file itself, even if it was replaced or deleted."""
        path = mapping.path.removesuffix(_DELETED)
        by_address = f"/proc/{self.pid}/map_files/{mapping.start:x}-{mapping.end:x}"
        # The kernel writes a path relative to our root if it can be reached from there (a chroot),
        # else relative to the mount namespace's root (a container).
        wanted = _identity(by_address)
        for candidate in (self.root + path, path):
            found = _identity(candidate)
            if found is not None and found == (wanted or (mapping.device, mapping.inode)):
                return candidate
        return by_address if wanted else self.root + path

    def loaded_objects(self) -> list[LoadedObject]:
        """The process's ELF files in the order in which its dynamic linker searches them for a symbol.

        From the linker's own list (r_debug, <link.h>); mapped files that are not in it follow.
        """
        mappings = self.mappings()
        by_file: dict[tuple[str, int, str], Mapping] = {}
        for mapping in mappings:
            if mapping.path.startswith("/") and mapping.is_executable:
                by_file.setdefault((mapping.device, mapping.inode, mapping.path), mapping)
        order = self._link_map_files(AddressSpace(mappings))
        executable = self._executable_file(mappings, order)
        first = [executable] if executable else []
        files = dict.fromkeys([*first, *order, *by_file])
        return [
            LoadedObject(
                by_file[file].path.removesuffix(_DELETED), self.open_path(by_file[file]), order.get(file, 0)
            )
            for file in files
            if file in by_file
        ]

    def _executable_file(
        self, mappings: list[Mapping], order: dict[tuple[str, int, str], int]
    ) -> tuple[str, int, str] | None:
        with _reading(self.pid):
            vector = _auxiliary_vector(self.pid)
        if order and not vector.get(_AT_BASE):  # the kernel started the linker itself (`ld.so PROGRAM`)
            return next(iter(order))
        entry = vector.get(_AT_ENTRY)
        mapping = AddressSpace(mappings).find(entry) if entry else None
        return (mapping.device, mapping.inode, mapping.path) if mapping else None

    def _link_map_files(self, space: AddressSpace) -> dict[tuple[str, int, str], int]:
        """Files of the link map in its order, with their dynamic sections. Empty before the dynamic linker has run, and
        for a static program.
        """
        found = dict[tuple[str, int, str], int]()
        try:
            for dynamic in _link_map(self.pid, self._debug_address(space)):
                mapping = space.find(dynamic)
                if mapping is not None:
                    found.setdefault((mapping.device, mapping.inode, mapping.path), dynamic)
        except (OSError, TargetError):
            pass  # the order of the mappings is used instead
        return found

    def _debug_address(self, space: AddressSpace) -> int:
        """Value of DT_DEBUG in the program's dynamic section in memory, 0 if there is none.

        Only programs have one: that of `ld.so PROGRAM` is the mapped file with it.
        """
        elf = ElfFile(f"/proc/{self.pid}/exe")
        vector = _auxiliary_vector(self.pid)
        entry = vector.get(_AT_ENTRY, 0)
        if vector.get(_AT_BASE):
            return self._debug_of(elf, entry - elf.entry_vaddr) if entry else 0
        for mapping in space.mappings:
            if mapping.path.startswith("/") and not mapping.file_offset and mapping.permissions[-1] == "p":
                with suppress(OSError, TargetError):
                    elf = ElfFile(self.open_path(mapping))
                    found = elf.interpreter and self._debug_of(elf, mapping.start - elf.first_load_vaddr)
                    if found:
                        return found
        return 0

    def _debug_of(self, elf: ElfFile, bias: int) -> int:
        dynamic = next((segment for segment in elf.segments if segment.type == PT_DYNAMIC), None)
        if dynamic is None:
            return 0
        address = dynamic.vaddr + bias
        table = _memory(self.pid, address, min(dynamic.memory_bytes, 1 << 16))
        for tag, value in struct.iter_unpack("<QQ", table[: len(table) & ~15]):
            if tag == DT_DEBUG:
                return int(value)
        return 0


def _identity(path: str) -> tuple[str, int] | None:
    """Device and inode in the form of /proc/PID/maps, though not with its numbers on some file systems."""
    try:
        found = file_status(path)
    except (OSError, ValueError):
        return None
    return f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}", found.st_ino


def _link_map(pid: int, debug: int) -> Iterator[int]:
    """Addresses of the dynamic sections (link_map.l_ld) in list order."""
    if not debug:
        return
    (entry,) = struct.unpack("<Q", _exactly(pid, debug + 8, 8))  # r_debug.r_map
    for _ in range(_LOADED_OBJECTS_MAX):
        if not entry:
            return
        _, _, dynamic, entry = struct.unpack("<QQQQ", _exactly(pid, entry, 32))
        yield dynamic


def _exactly(pid: int, address: int, size: int) -> bytes:
    data = _memory(pid, address, size)
    if len(data) != size:
        raise OSError(f"{size} bytes at {address:#x} cannot be read")
    return data


def _memory(pid: int, address: int, size: int) -> bytes:
    """Memory of a process, which maps what it likes there. Raises TimeoutError for memory that does not come."""
    data, _ = call(_read_memory, pid, address, size) if address < 2**63 else (b"", -1)
    return bytes(data)


class _Span(ctypes.Structure):  # struct iovec
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _read_memory(progress: Progress, pid: int, address: int, size: int) -> tuple[bytes, int]:
    """By process_vm_readv(2). A read of /proc/PID/mem locks the process's mappings while it waits for a page
    (mm/memory.c, __access_remote_vm()): its next mmap(), and all that reads its maps, would wait, too.
    """
    buffer = ctypes.create_string_buffer(size)
    here, there = _Span(ctypes.addressof(buffer), size), _Span(address, size)
    libc = ctypes.CDLL(None, use_errno=True)
    n = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    if n < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return buffer.raw[:n], -1


def check_running(pid: int) -> None:
    """Raises TargetError: not there, a thread, ended. Kernel threads pass."""
    with _reading(pid):
        check_not_ended(pid, _status(pid))


def check_not_ended(pid: int, status: ProcessStatus) -> None:
    """Raises TargetError: ended, or a thread. Without its first thread a process runs on, but the kernel hides its files."""
    if status.state in "ZX" and status.has_threads:
        raise TargetError(
            f"process {pid} ({status.name}) runs on, but its first thread has ended",
            "measure it from its start",
        )
    if status.state in "ZX":
        raise TargetError(f"process {pid} ({status.name}) has ended already (zombie)")
    if status.tgid != pid:
        raise TargetError(
            f"{pid} is a thread of process {status.tgid} ({status.name})", f"use --pid {status.tgid}"
        )


def check_status(pid: int, status: ProcessStatus) -> None:
    """Raises TargetError: ended, a thread, a kernel thread."""
    check_not_ended(pid, status)
    if not status.has_memory and status.parent in _PARENTS_OF_KERNEL_THREADS:
        raise TargetError(f"process {pid} ({status.name}) is a kernel thread", "use --kernel")
    if not status.has_memory:
        raise TargetError(f"process {pid} ({status.name}) ended while it was attached to")


def _own_refusal(pid: int) -> str:
    """Why a process of our own user is refused. The files of one that is not dumpable belong to root (proc(5))."""
    if os.stat(f"/proc/{pid}/mem").st_uid != os.geteuid():
        return "it is not dumpable (set-user-ID, or prctl(PR_SET_DUMPABLE))"
    return "the system forbids it"


def _check_access(pid: int, status: ProcessStatus) -> None:
    try:
        with opened(f"/proc/{pid}/exe") as file:
            header = file.read(5)
        read_text(f"/proc/{pid}/maps")
    except PermissionError as error:
        owner = f"it belongs to uid {status.uid}" if status.uid != os.geteuid() else _own_refusal(pid)
        raise TargetError(
            f"process {pid} ({status.name}) may not be traced: {owner}", "run as root"
        ) from error
    if header[4:5] == bytes([ELFCLASS32]):
        raise TargetError(
            f"process {pid} ({status.name}) is 32-bit, which cannot be traced", "use a 64-bit build of it"
        )


def _root(pid: int) -> str:
    ours, theirs = os.stat("/"), file_status(f"/proc/{pid}/root/")
    same_root = (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)
    same_mounts = os.readlink("/proc/self/ns/mnt") == os.readlink(f"/proc/{pid}/ns/mnt")
    return "" if same_root and same_mounts else f"/proc/{pid}/root"


def _status(pid: int) -> ProcessStatus:
    return parse_status(read_text(f"/proc/{pid}/status"))


def command_line(pid: int) -> str:
    """The shell-quoted command line, from its program on, "" of a kernel thread. Raises OSError."""
    data, _ = call(_read_command_line, pid)
    words = data.rstrip(b"\0").split(b"\0")
    if words == [b""]:
        return ""
    return shlex.join(words_of_program([os.fsdecode(word) for word in words]))


def _read_command_line(progress: Progress, pid: int) -> tuple[bytes, int]:
    """The process's memory, like the rest of it."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read(_COMMAND_BYTES_MAX), -1


def _auxiliary_vector(pid: int) -> dict[int, int]:
    with open(f"/proc/{pid}/auxv", "rb") as file:
        data = file.read(4096)
    return parse_auxv(data)


def read_text(path: str) -> str:
    """A file of /proc: a name in it may hold carriage returns, and bytes that are not UTF-8.

    Raises OSError, and TimeoutError: what a process maps is not readable while another waits for its memory.
    """
    _, descriptor = call(_copy_text, path)
    with open(descriptor, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        file.seek(0)
        return file.read()


def _copy_text(progress: Progress, path: str) -> tuple[None, int]:
    """A file of memory: of the mappings of a process there can be megabytes."""
    with open(path, "rb", buffering=0) as file:
        copy = os.memfd_create("text", os.MFD_CLOEXEC)
        while piece := file.read(1 << 20):
            os.write(copy, piece)
            progress()
    return None, copy


@contextmanager
def _reading(pid: int) -> Iterator[None]:
    """Translates errors of /proc for a missing or ended process into a TargetError."""
    existed = os.path.exists(f"/proc/{pid}")
    try:
        yield
    except TimeoutError as error:
        raise TargetError(f"process {pid} cannot be read: {error.strerror}") from error
    except (FileNotFoundError, ProcessLookupError, ValueError) as error:
        if existed:
            raise TargetError(f"process {pid} ended while it was attached to") from error
        raise TargetError(f"there is no process {pid}") from error
    except PermissionError as error:
        raise TargetError(f"process {pid} may not be traced: {error.strerror}", "run as root") from error


_CGROUPS = "/sys/fs/cgroup"
_NO_LIMIT = 1 << 60  # cgroup v1 writes a number near 2^63 for none (mm/page_counter.c)

Limit = tuple[str, int, int]  # its name, the limit and what is used, in bytes


def memory_limits(pid: int) -> list[Limit]:
    """Those that there are, of a process that still runs."""
    return [*_of_groups(pid), *_of_process(pid)]


def _of_groups(pid: int) -> Iterator[Limit]:
    """cgroups(7): version 2 has a line `0::/path`, version 1 one with the controller `memory`."""
    for line in _text(f"/proc/{pid}/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield from _of_tree(_CGROUPS, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            yield from _of_tree(f"{_CGROUPS}/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _of_tree(root: str, path: str, limit_name: str, used_name: str) -> Iterator[Limit]:
    """A group's limit holds for those below it, too."""
    while ".." not in path.split("/"):  # of a group outside of our namespace
        limit, used = (_number(_text(f"{root}{path}/{name}")) for name in (limit_name, used_name))
        if limit is not None and used is not None and limit < _NO_LIMIT:
            yield f"control group {path}", limit, used
        if path in ("", "/"):
            return
        path = os.path.dirname(path)


def _of_process(pid: int) -> Iterator[Limit]:
    """setrlimit(2); the same amounts as in status (proc(5)), in KiB."""
    limits, status = _text(f"/proc/{pid}/limits"), _text(f"/proc/{pid}/status")
    for name, title, amount in (
        ("ulimit -v", "address space", "VmSize"),
        ("ulimit -d", "data size", "VmData"),
    ):
        limit = re.search(rf"^Max {title} +(\d+) ", limits, re.MULTILINE)
        used = re.search(rf"^{amount}:\s+(\d+) kB$", status, re.MULTILINE)
        if limit and used:
            yield name, int(limit[1]), int(used[1]) << 10


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _text(path: str) -> str:
    with suppress(OSError):
        return read_text(path)
    return ""
