"""A process on another machine: its facts, read from its /proc with one command."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from memleak_android.host.console import one_line
from memleak_android.host.errors import DeviceError, TargetError
from memleak_android.host.machine.linker_command import words_of_program
from memleak_android.host.machine.local.process import check_not_ended, check_status
from memleak_android.host.machine.parse import ProcessStatus, last_line, parse_auxv, parse_maps, parse_status
from memleak_android.host.machine.target import Target
from memleak_android.unwind.elf_headers import ELFCLASS32
from memleak_android.unwind.maps import AddressSpace, Mapping

_DELETED = " (deleted)"
_AT_ENTRY = 9  # <elf.h>
_NO_PROCESS = 66

# $1: pid, $2: separator of the parts. dd, because head -c came with Android 7.
_LOOK = """cd "/proc/$1" 2>/dev/null || exit 66
for f in status cmdline auxv maps; do cat $f; printf %s "$2"; done
dd if=exe bs=64 count=1 2>/dev/null; exit 0"""


@dataclass(frozen=True, slots=True)
class RemoteProcess:
    """A running process that passed all checks when it was opened.

    command: its shell-quoted command line; of an app its process name.
    mappings: of that moment.
    entry: the program's entry point, 0 = unknown.
    machine: e_machine of its executable, 0 if unreadable.
    """

    target: Target
    pid: int
    name: str
    command: str
    uid: int
    mappings: tuple[Mapping, ...]
    entry: int
    is_64_bit: bool
    machine: int

    @classmethod
    def open(cls, target: Target, pid: int) -> RemoteProcess:
        """Raises TargetError: not there, a thread, ended, a kernel thread, unreadable."""
        status, parts, complaint = _look(target, pid)
        check_status(pid, status)
        mappings = tuple(parse_maps(parts[3].decode("utf-8", "surrogateescape")))
        if not mappings:
            raise _unreadable(pid, status, target, complaint)
        header = parts[4]
        return cls(
            target,
            pid,
            one_line(status.name),
            _command(parts[1]) or one_line(status.name),
            status.uid,
            mappings,
            parse_auxv(parts[2]).get(
                _AT_ENTRY, 0
            ),  # 0 for a 32-bit process, whose vector has words of 4 bytes
            header[4:5] != bytes([ELFCLASS32]) if header else mappings[-1].end > 1 << 32,
            int.from_bytes(header[18:20], "little"),
        )

    @property
    def executable(self) -> Mapping | None:
        return AddressSpace(self.mappings).find(self.entry) if self.entry else None

    def objects(self, agent: str, functions: Sequence[str]) -> list[RemoteObject]:
        """The ELF files of the process in the order in which its linker searches them for a symbol.

        agent: memleakd on the device.
        functions: the names to look up in each file.
        Mapped files that are not in the linker's list follow. What those and a static program define is unknown.
        """
        argv = [agent, "objects", str(self.pid), *functions]
        answer = self.target.run(argv, as_root=self.target.has_root)
        if answer.code:
            raise TargetError(
                f"process {self.pid} ({self.name}) cannot be read: {answer.complaint}", "run as root"
            )
        space, found = AddressSpace(self.mappings), dict[tuple[str, int, str], RemoteObject]()
        if self.executable is not None:
            found[_file(self.executable)] = RemoteObject(self.executable)
        for line in answer.out.decode("ascii", "replace").splitlines():
            address, *names = line.split()
            mapping = space.find(_hexadecimal(address))
            if mapping is not None and mapping.path.startswith("/"):
                first = found.get(_file(mapping), RemoteObject(mapping)).mapping
                found[_file(mapping)] = RemoteObject(first, frozenset(names))
        for mapping in self.mappings:
            if mapping.is_executable and mapping.path.startswith("/"):
                found.setdefault(_file(mapping), RemoteObject(mapping))
        return list(found.values())


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """A file in a process. mapping: one of its mappings. defines: which of the looked-up names it defines."""

    mapping: Mapping
    defines: frozenset[str] = frozenset()

    @property
    def path(self) -> str:
        return self.mapping.path.removesuffix(_DELETED)

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


def running_command(target: Target, pid: int) -> str:
    """As RemoteProcess.command; of a kernel thread its name. Raises TargetError: not there, a thread, ended."""
    status, parts, _ = _look(target, pid)
    check_not_ended(pid, status)
    return _command(parts[1]) or one_line(status.name)


def _look(target: Target, pid: int) -> tuple[ProcessStatus, list[bytes], bytes]:
    """Output of _LOOK in its parts, and its stderr. Raises TargetError, DeviceError."""
    mark = secrets.token_hex(16)
    answer = target.run(["sh", "-c", _LOOK, "sh", str(pid), mark], as_root=target.has_root)
    parts = answer.out.split(mark.encode())
    if answer.code == _NO_PROCESS or (len(parts) == 5 and not parts[0]):
        raise TargetError(f"there is no process {pid} on {target.name}")
    if len(parts) != 5:
        raise DeviceError(
            f"{target.name} did not answer about process {pid}: {answer.complaint or 'incomplete answer'}",
            "try again",
        )
    return _status(pid, target, parts[0]), parts, answer.err


def _status(pid: int, target: Target, text: bytes) -> ProcessStatus:
    try:
        return parse_status(text.decode("utf-8", "replace"))
    except ValueError as error:
        raise DeviceError(f"{target.name} did not answer about process {pid}: {error}", "try again") from None


def _unreadable(pid: int, status: ProcessStatus, target: Target, complaint: bytes) -> TargetError:
    reason = last_line(complaint) or "its maps are empty"
    hint = (
        "try again" if target.has_root else "root the device, or use a debuggable build and --tracer preload"
    )
    return TargetError(
        f"process {pid} ({one_line(status.name)}) of uid {status.uid} may not be read: {reason}", hint
    )


def _command(words: bytes) -> str:
    """The command line. An app's is its name, padded with NULs (setArgV0 of Android's runtime)."""
    text = [one_line(word.decode("utf-8", "replace")) for word in words.rstrip(b"\0").split(b"\0")]
    return shlex.join(words_of_program([word for word in text if word]))


def _file(mapping: Mapping) -> tuple[str, int, str]:
    return mapping.device, mapping.inode, mapping.path


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
