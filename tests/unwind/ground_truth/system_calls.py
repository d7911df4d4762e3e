"""The few Linux system calls that the emulated programs make. Numbers: asm-generic/unistd.h, arch/arm/tools/syscall.tbl.

Files are those of a folder that stands for the root, read only; what is written to standard output is kept.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

from tests.unwind.ground_truth.guest_memory import PAGE, GuestMemory

_AT_FDCWD = -100
_MAP_FIXED, _MAP_ANONYMOUS = 0x10, 0x20
_NUMBERS = {
    "arm64": {17: "getcwd", 29: "ioctl", 48: "faccessat", 56: "openat", 57: "close", 62: "lseek", 63: "read", 64: "write",
        65: "readv", 66: "writev", 67: "pread64", 78: "readlinkat", 79: "newfstatat", 80: "fstat", 93: "exit",
        94: "exit_group", 96: "set_tid_address", 98: "futex", 99: "set_robust_list", 113: "clock_gettime",
        131: "tgkill", 132: "sigaltstack", 134: "rt_sigaction", 135: "rt_sigprocmask", 139: "rt_sigreturn",
        160: "uname", 169: "gettimeofday", 172: "getpid", 173: "getppid", 174: "getuid", 175: "geteuid", 176: "getgid", 177: "getegid",
        178: "gettid", 214: "brk", 215: "munmap", 216: "mremap", 222: "mmap", 226: "mprotect", 233: "madvise", 261: "prlimit64",
        278: "getrandom", 439: "faccessat"},
    "arm32": {1: "exit", 3: "read", 4: "write", 6: "close", 19: "lseek", 20: "getpid", 33: "access", 45: "brk", 54: "ioctl",
        78: "gettimeofday", 91: "munmap", 122: "uname", 125: "mprotect", 140: "_llseek", 145: "readv", 146: "writev", 163: "mremap",
        173: "rt_sigreturn", 174: "rt_sigaction", 175: "rt_sigprocmask", 180: "pread64", 183: "getcwd",
        186: "sigaltstack", 192: "mmap", 195: "stat64", 196: "lstat64", 197: "fstat64", 199: "getuid", 200: "getgid",
        201: "geteuid", 202: "getegid", 220: "madvise", 224: "gettid", 240: "futex", 248: "exit_group", 256: "set_tid_address",
        263: "clock_gettime", 268: "tgkill", 322: "openat", 327: "newfstatat", 332: "readlinkat", 334: "faccessat",
        338: "set_robust_list", 369: "prlimit64", 384: "getrandom", 403: "clock_gettime64", 439: "faccessat",
        983045: "set_tls"},
}  # fmt: skip
_IGNORED = (
    "set_tid_address",
    "set_robust_list",
    "futex",
    "mprotect",
    "munmap",
    "madvise",
    "rt_sigprocmask",
    "prlimit64",
)
_IDENTITY = {
    "getpid": 4242,
    "gettid": 4242,
    "getppid": 1,
    "getuid": 1000,
    "geteuid": 1000,
    "getgid": 1000,
    "getegid": 1000,
}


class SystemCalls:
    """root: the folder of the guest's files. Calls that the CPU has to do with are `extra`, by name."""

    def __init__(
        self, arch: str, memory: GuestMemory, root: Path, extra: dict[str, Callable[..., int | None]]
    ) -> None:
        self._names = _NUMBERS[arch]
        self._memory = memory
        self._root = root
        self._extra = extra
        self._is_64 = memory.layout.word_bytes == 8
        self._files: dict[int, Path] = {}
        self._ticks = 0
        self.output = bytearray()
        self.exit_code: int | None = None

    def call(self, number: int, arguments: list[int]) -> int | None:
        """The result, negative errors included; None: the registers have been set already."""
        name = self._names.get(number, "")
        if name in self._extra:
            return self._extra[name](*arguments)
        if name in _IGNORED:
            return 0
        if name in _IDENTITY:
            return _IDENTITY[name]
        function = getattr(self, f"_{name}", None)
        if function is None:
            return -errno.ENOSYS
        try:
            return int(function(*arguments))
        except OSError as error:
            return -(error.errno or errno.EIO)

    # ---- files ----------------------------------------------------------------------------------

    def path_of(self, address: int) -> Path:
        name = self._memory.text(address)
        inside = self._root / name.lstrip("/")
        return inside if name.startswith("/") and not name.startswith(str(self._root)) else Path(name)

    def _openat(self, folder: int, name: int, flags: int, *_: int) -> int:
        path = self.path_of(name)
        if flags & 3:
            return -errno.EROFS
        fd = os.open(path, os.O_RDONLY)
        self._files[fd] = path
        return fd

    def _close(self, fd: int, *_: int) -> int:
        if self._files.pop(fd, None) is not None:
            os.close(fd)
        return 0

    def close_all(self) -> None:
        for fd in list(self._files):
            self._close(fd)

    def _host_fd(self, fd: int) -> int:
        if fd not in self._files:
            raise OSError(errno.EBADF, "not a file of the guest")
        return fd

    def _read(self, fd: int, buffer: int, size: int, *_: int) -> int:
        data = b"" if fd == 0 else os.read(self._host_fd(fd), size)
        self._memory.write(buffer, data)
        return len(data)

    def _pread64(self, fd: int, buffer: int, size: int, *offset: int) -> int:
        position = offset[0] if self._is_64 else offset[1] | offset[2] << 32  # an even register pair
        data = os.pread(self._host_fd(fd), size, position)
        self._memory.write(buffer, data)
        return len(data)

    def _write(self, fd: int, buffer: int, size: int, *_: int) -> int:
        self.output += self._memory.read(buffer, size)
        return size

    def _vectors(self, array: int, count: int) -> list[tuple[int, int]]:
        word = self._memory.layout.word_bytes
        return [
            (self._memory.word(array + 2 * i * word), self._memory.word(array + (2 * i + 1) * word))
            for i in range(count)
        ]

    def _writev(self, fd: int, array: int, count: int, *_: int) -> int:
        return sum(self._write(fd, base, size) for base, size in self._vectors(array, count))

    def _readv(self, fd: int, array: int, count: int, *_: int) -> int:
        done = 0
        for base, size in self._vectors(array, count):
            n = self._read(fd, base, size)
            done += n
            if n < size:
                break
        return done

    def _lseek(self, fd: int, offset: int, whence: int, *_: int) -> int:
        bits = 8 * self._memory.layout.word_bytes
        return os.lseek(self._host_fd(fd), offset - (offset >> (bits - 1) << bits), whence)

    def __llseek(self, fd: int, high: int, low: int, result: int, whence: int, *_: int) -> int:
        position = os.lseek(self._host_fd(fd), high << 32 | low, whence)
        self._memory.write(result, struct.pack("<Q", position))
        return 0

    def _ioctl(self, *_: int) -> int:
        return -errno.ENOTTY

    def _access(self, name: int, *_: int) -> int:
        return 0 if self.path_of(name).exists() else -errno.ENOENT

    def _faccessat(self, folder: int, name: int, *_: int) -> int:
        return self._access(name)

    def _readlinkat(self, *_: int) -> int:
        return -errno.EINVAL

    def _getcwd(self, buffer: int, *_: int) -> int:
        self._memory.write(buffer, b"/\0")
        return 2

    def _store_stat(self, address: int, found: os.stat_result) -> int:
        """struct stat (asm-generic/stat.h); struct stat64 of 32-bit Arm (arch/arm/include/uapi/asm/stat.h)."""
        common = found.st_mode, found.st_nlink, 1000, 1000
        if self._is_64:
            head = struct.pack("<QQIIIIQQqiiqqqqqqqII", found.st_dev, found.st_ino, *common, 0, 0, found.st_size, 4096, 0,
                -(-found.st_size // 512), 0, 0, 0, 0, 0, 0, 0, 0)  # fmt: skip
        else:
            head = struct.pack("<QIIIIIIQ8xqI4xQIIIIIIQ", found.st_dev, 0, found.st_ino & 0xFFFFFFFF, *common, 0,
                found.st_size, 4096, -(-found.st_size // 512), 0, 0, 0, 0, 0, 0, found.st_ino)  # fmt: skip
        self._memory.write(address, head)
        return 0

    def _newfstatat(self, folder: int, name: int, buffer: int, *_: int) -> int:
        if not self._memory.text(name):
            return self._fstat(folder, buffer)
        return self._store_stat(buffer, os.stat(self.path_of(name)))

    def _stat64(self, name: int, buffer: int, *_: int) -> int:
        return self._store_stat(buffer, os.stat(self.path_of(name)))

    _lstat64 = _stat64

    def _fstat(self, fd: int, buffer: int, *_: int) -> int:
        found = os.stat("/dev/null") if fd in (0, 1, 2) else os.fstat(self._host_fd(fd))
        return self._store_stat(buffer, found)

    _fstat64 = _fstat

    # ---- memory ---------------------------------------------------------------------------------

    def _brk(self, wanted: int, *_: int) -> int:
        self._memory.program_break = max(self._memory.program_break, wanted)
        return self._memory.program_break

    def _mmap(self, address: int, size: int, rights: int, flags: int, fd: int, offset: int) -> int:
        """mmap2 on 32-bit Arm: the offset counts pages."""
        start = address if flags & _MAP_FIXED else self._memory.reserve(size)
        whole = -(-size // PAGE) * PAGE
        data = b""
        if not flags & _MAP_ANONYMOUS:
            position = offset if self._is_64 else offset * PAGE
            data = os.pread(self._host_fd(fd), whole, position)
            permissions = (
                "".join(c if rights & bit else "-" for c, bit in (("r", 1), ("w", 2), ("x", 4))) + "p"
            )
            self._memory.show(start, size, permissions, position, self._files[fd])
        if data or flags & _MAP_FIXED:
            self._memory.write(start, data.ljust(whole, b"\0"))
        return start

    def _mremap(self, old: int, old_size: int, size: int, *_: int) -> int:
        start = self._memory.reserve(size)
        self._memory.write(start, self._memory.read(old, min(old_size, size)))
        return start

    # ---- the rest -------------------------------------------------------------------------------

    def _exit_group(self, code: int, *_: int) -> int:
        self.exit_code = code
        return 0

    _exit = _exit_group

    def _clock_gettime(self, clock: int, buffer: int, *_: int) -> int:
        self._ticks += 1
        self._memory.write(
            buffer, struct.pack("<QQ" if self._is_64 else "<II", 1_700_000_000, 1000 * self._ticks)
        )
        return 0

    def _clock_gettime64(self, clock: int, buffer: int, *_: int) -> int:
        self._ticks += 1
        self._memory.write(buffer, struct.pack("<QQ", 1_700_000_000, 1000 * self._ticks))
        return 0

    def _gettimeofday(self, buffer: int, *_: int) -> int:
        return self._clock_gettime(0, buffer)

    def _uname(self, buffer: int, *_: int) -> int:
        machine = "aarch64" if self._is_64 else "armv7l"
        fields = ("Linux", "guest", "6.1.0", "#1", machine, "")
        self._memory.write(buffer, b"".join(field.encode().ljust(65, b"\0") for field in fields))
        return 0

    def _getrandom(self, buffer: int, size: int, *_: int) -> int:
        self._memory.write(buffer, bytes(i * 37 & 0xFF for i in range(size)))
        return size
