"""The few Linux system calls that the emulated programs make. Numbers: asm-generic/unistd.h, arch/arm/tools/syscall.tbl.

Files are those of a folder that stands for the root, read only; what is written to standard output is kept.
"""

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

from tests.unwind.ground_truth.guest_memory import PAGE, GuestMemory

_MAP_FIXED, _MAP_ANONYMOUS = 0x10, 0x20
_NUMBERS = {
    "arm64": {17: "getcwd", 29: "ioctl", 48: "faccessat", 56: "openat", 57: "close", 63: "read", 64: "write",
        78: "readlinkat", 79: "newfstatat", 94: "exit_group", 96: "set_tid_address", 98: "futex",
        99: "set_robust_list", 113: "clock_gettime", 131: "tgkill", 132: "sigaltstack", 134: "rt_sigaction",
        135: "rt_sigprocmask", 139: "rt_sigreturn", 172: "getpid", 173: "getppid", 174: "getuid", 175: "geteuid",
        176: "getgid", 177: "getegid", 214: "brk", 215: "munmap", 222: "mmap", 226: "mprotect", 261: "prlimit64",
        278: "getrandom", 439: "faccessat"},
    "arm32": {3: "read", 4: "write", 6: "close", 20: "getpid", 33: "access", 45: "brk", 54: "ioctl", 91: "munmap",
        125: "mprotect", 173: "rt_sigreturn", 174: "rt_sigaction", 175: "rt_sigprocmask", 183: "getcwd",
        186: "sigaltstack", 192: "mmap", 199: "getuid", 200: "getgid", 201: "geteuid", 202: "getegid", 240: "futex",
        248: "exit_group", 256: "set_tid_address", 268: "tgkill", 322: "openat", 327: "newfstatat",
        338: "set_robust_list", 369: "prlimit64", 384: "getrandom", 403: "clock_gettime64", 983045: "set_tls"},
}  # fmt: skip
_RETURN_0 = (
    "set_tid_address",
    "set_robust_list",
    "futex",
    "mprotect",
    "munmap",
    "rt_sigprocmask",
    "prlimit64",
)
_OF_USER = ("getuid", "geteuid", "getgid", "getegid")
_RESULTS = dict.fromkeys(_RETURN_0, 0) | dict.fromkeys(_OF_USER, 1000) | {"getpid": 4242, "getppid": 1}


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
        if name in _RESULTS:
            return _RESULTS[name]
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

    def _write(self, fd: int, buffer: int, size: int, *_: int) -> int:
        self.output += self._memory.read(buffer, size)
        return size

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

    def _fstat(self, fd: int, buffer: int, *_: int) -> int:
        found = os.stat("/dev/null") if fd in (0, 1, 2) else os.fstat(self._host_fd(fd))
        return self._store_stat(buffer, found)

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
            shown = "".join(c if rights & bit else "-" for c, bit in (("r", 1), ("w", 2), ("x", 4)))
            self._memory.show(start, size, shown + "p", position, self._files[fd])
        if data or flags & _MAP_FIXED:
            self._memory.write(start, data.ljust(whole, b"\0"))
        return start

    # ---- the rest -------------------------------------------------------------------------------

    def _exit_group(self, code: int, *_: int) -> int:
        self.exit_code = code
        return 0

    def _clock_gettime(self, clock: int, buffer: int, *_: int) -> int:
        self._ticks += 1
        self._memory.write(buffer, struct.pack("<QQ", 1_700_000_000, 1000 * self._ticks))
        return 0

    _clock_gettime64 = _clock_gettime

    def _getrandom(self, buffer: int, size: int, *_: int) -> int:
        self._memory.write(buffer, bytes(i * 37 & 0xFF for i in range(size)))
        return size
