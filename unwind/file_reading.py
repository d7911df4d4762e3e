"""Every file that a user, a recording or a process names: regular files only, and no more bytes than a bound.

A FIFO would be waited for, /dev/zero has no end, and some files of /proc and /sys (kmsg, trace_pipe) wait for an event.
Only this module maps files: a mapping ends the process by SIGBUS when the file is truncated (mmap(2)).
A file whose server is a process (FUSE) is opened once that has answered for all of it; another user's is not opened.
"""

import errno
import mmap
import os
import stat
from collections.abc import Callable, Collection
from io import BufferedReader
from pathlib import Path

from memleak_android.unwind.abandonable_calls import Call, Progress, call
from memleak_android.unwind.user_space_mounts import mount_of, served_mounts

COPIED_BYTES_MAX = 1 << 30  # of a file that may not be mapped, as of a file pulled from a device
# Bytes without storage in such a file: linkers leave less than a page, of 2 MB at most, between two segments.
HOLES_BYTES_MAX = 64 << 20
_PIECE_BYTES = 1 << 20
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NAMING_ONLY = getattr(os, "O_PATH", _FLAGS) | os.O_CLOEXEC  # opens no device, waits for no FIFO (open(2))
_OWN_DESCRIPTORS = "/proc/self/fd"
_OF_THIS_PROCESS = {
    "/proc/self/": "",
    "/dev/fd/": "fd/",
    "/dev/stdin": "fd/0",
}  # prefix: what it is below /proc/PID


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> int:
    """A descriptor for reading. Only a regular file is opened: opening a device may act already (/dev/watchdog).

    follow: symbolic links at the end of the path.
    Raises OSError, and ValueError for a path with a NUL.
    """
    if not served_mounts(path):
        return _open_now(path, follow)
    return _call(_open_served, path, follow)[1]


def _call(function: Call, path: str | os.PathLike[str], *arguments: object) -> tuple[object, int]:
    """The function of the path, in the process that may wait for its file system."""
    try:
        return call(function, _in_every_process(path), *arguments)
    except OSError as error:
        error.filename = path  # as the caller names it
        raise


def _in_every_process(path: str | os.PathLike[str]) -> str:
    """The path as another process finds it: `self` and descriptors are ours, and so is the working directory."""
    name = os.path.join(os.getcwd(), os.fsdecode(path))
    for own, ours in _OF_THIS_PROCESS.items():
        if name.startswith(own):
            return f"/proc/{os.getpid()}/{ours}{name.removeprefix(own)}"
    return name


def _open_now(path: str | os.PathLike[str], follow: bool, check: Callable[[int], None] | None = None) -> int:
    """check: raises OSError for a file that is not to be asked for anything."""
    no_link = 0 if follow else os.O_NOFOLLOW
    named = os.open(path, _NAMING_ONLY | no_link)
    try:
        if check is not None:
            check(named)
        about = os.fstat(named)
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if stat.S_ISLNK(about.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file; write it to one first", path)
        try:
            return os.open(f"{_OWN_DESCRIPTORS}/{named}", _FLAGS)
        except FileNotFoundError:
            return _open_by_path(path, _FLAGS | no_link, about)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(named)


def _open_served(progress: Progress, path: str, follow: bool) -> tuple[None, int]:
    """Opens a file, perhaps of a file system in user space."""
    mounts = {mount.mount_id: mount for mount in served_mounts(path)}
    found: list[bool] = []

    def check(named: int) -> None:
        mount = mounts.get(mount_of(named) or 0)
        found.append(mount is not None)
        if mount is not None and not mount.is_trusted:
            raise OSError(errno.EACCES, "another user's process serves it (FUSE); read a copy of it", path)

    descriptor = _open_now(path, follow, check)
    at = 0 if found[0] else COPIED_BYTES_MAX
    while at < COPIED_BYTES_MAX and (piece := os.pread(descriptor, _PIECE_BYTES, at)):
        at += len(piece)
        progress()
    return None, descriptor


def _open_by_path(path: str | os.PathLike[str], flags: int, about: os.stat_result) -> int:
    """Opens a file where /proc is not mounted. Here alone a device may replace it between the check and the opening."""
    descriptor = os.open(path, flags)
    if os.path.samestat(os.fstat(descriptor), about):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.ESTALE, "another file replaced it while it was opened", path)


def file_status(path: str | os.PathLike[str]) -> os.stat_result:
    """stat(2). Raises OSError, and ValueError for a path with a NUL."""
    if not served_mounts(path):
        return os.stat(path)
    found, _ = _call(_status_served, path)
    assert isinstance(found, os.stat_result)
    return found


def status_in_mount(path: str, mounts: Collection[int | None]) -> os.stat_result | None:
    """stat(2) of a file in one of these mounts. None: it is in another one, of whose server nothing is asked. Raises OSError."""
    descriptor = os.open(path, _NAMING_ONLY)
    try:
        return os.fstat(descriptor) if mount_of(descriptor) in mounts else None
    finally:
        os.close(descriptor)


def _status_served(progress: Progress, path: str) -> tuple[os.stat_result, int]:
    return os.stat(path), -1


def opened(path: str | os.PathLike[str]) -> BufferedReader:
    """A stream. Raises as open_regular()."""
    return open(open_regular(path), "rb")


def read_file(path: str | os.PathLike[str], bytes_max: int) -> bytes:
    """All of a file. Raises as open_regular(), and OSError (EFBIG) for a larger one."""
    data = bytearray()
    with opened(Path(path)) as file:
        while piece := file.read(
            min(_PIECE_BYTES, bytes_max + 1 - len(data))
        ):  # read() allocates what it may read
            data += piece
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"it is larger than {bytes_max:,} bytes", path)
    return bytes(data)


def contents(descriptor: int, path: str | os.PathLike[str], mapped_from: int = 0) -> memoryview:
    """All bytes of an open regular file, read-only; a file of the kernel has none.

    descriptor: stays open, its offset changes.
    path: for messages.
    mapped_from: smaller files are copied in any case, because their owner may rebuild them in place.

    The file is mapped only if no other user can change it. Else it is copied, up to COPIED_BYTES_MAX, if it stores what
    it claims to hold: its owner then has paid for the bytes that we spend.
    Raises OSError: EFBIG, ENOMEM, and EIO for a file that becomes shorter meanwhile.
    """
    about = os.fstat(descriptor)
    size = about.st_size
    is_mapped = size >= mapped_from and _only_we_change(about)
    if not size:
        return memoryview(b"")
    if not is_mapped and (excess := _excess(descriptor, size)):
        raise OSError(errno.EFBIG, f"another user may change it, and {excess}; read a copy of it", path)
    try:
        data = _mapped(descriptor) if is_mapped else _copied(descriptor, size)
    except (MemoryError, OverflowError, ValueError):  # /proc/kcore is larger than any address space
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path) from None
    if len(data) < size:
        raise OSError(errno.EIO, "it became shorter while it was read", path)
    return data


def _only_we_change(about: os.stat_result) -> bool:
    """Whether root or this user owns a file and no other may write. A write bit of an ACL shows as the group's (acl(5))."""
    return about.st_uid in (0, os.geteuid()) and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _excess(descriptor: int, size: int) -> str:
    """Why a file is not copied; "" = it is."""
    if size > COPIED_BYTES_MAX:
        return f"it is larger than {COPIED_BYTES_MAX:,} bytes"
    if _hole_bytes(descriptor, size) > HOLES_BYTES_MAX:
        return f"more than {HOLES_BYTES_MAX:,} bytes of it are not stored (sparse)"
    return ""


def _hole_bytes(descriptor: int, size: int) -> int:
    """Bytes without storage (lseek(2)), counted until they exceed the bound; 0 if the file system does not report them."""
    holes = at = 0
    while at < size and holes <= HOLES_BYTES_MAX:
        try:
            stored = os.lseek(descriptor, at, os.SEEK_DATA)
            holes += stored - at
            at = os.lseek(descriptor, stored, os.SEEK_HOLE)
        except OSError as error:
            return holes + (size - at if error.errno == errno.ENXIO else 0)  # ENXIO: the rest is a hole
    return holes


def _mapped(descriptor: int) -> memoryview:
    return memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))


def _copied(descriptor: int, size: int) -> memoryview:
    """`size` bytes, fewer if the file ends before."""
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return memoryview(file.read(size))
